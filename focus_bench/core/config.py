"""What a user can ask of one run: frozen, validated, resolved and hashed records.

One PointConfig is one point of a sweep. Knows no data, no model weights and no executor.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from focus_bench.core.errors import UsageError, check_choice, check_range
from focus_bench.core.model_spec import BUNDLED_MODELS

POLICY_NAMES = (
    "baseline",
    "delayed-cache",
    "delayed-cache-neighbor",
    "focus",
    "focus-fixed",
    "adaptive",
    "ideal",
    "fast-dllm-v2",
)
UNMASKING_STRATEGIES = ("low_confidence_dynamic", "low_confidence_static", "sequential")
SELECTIONS = ("top", "random", "bottom")
MAX_NUM_PROMPTS = 100_000  # all are made before the first is sent, some 25 us each
MAX_BLOCK_LENGTH = 64  # masks of a block fit one 64-bit word (decode traces, kernels)
ENGINE = "engine"  # the backend that is this project's own engine
BACKENDS = (ENGINE, "openai", "lmdeploy")


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """The decoding rules' parameters (algorithm sections 1 and 2).

    `steps` is the number of steps per block of the static and sequential strategies (None: B).
    `retain` and `select` belong to policy focus-fixed. The last three are choices that the paper
    leaves open, selectable so that they can be measured: `budget_average` says over what N_avg is
    taken, "block" (this project's rule) or "sequence"; `attention_cover` what the layers >= 1 of a
    step with eviction attend to in the block, up to "progress" (the rule) or to the step's
    "rightmost" kept position; `refresh_prompt` whether a first block's commit pass feeds its prompt
    tokens again (the rule: no).
    """

    policy: str = "focus"
    block_length: int = 32
    alpha: float = 1.5
    threshold: float = 0.9
    unmasking_strategy: str = "low_confidence_dynamic"
    steps: int | None = None
    retain: int = 8
    select: str = "top"
    focus_min_batch: int = 16
    budget_average: str = "block"
    attention_cover: str = "progress"
    refresh_prompt: bool = False

    def __post_init__(self) -> None:
        check_choice("--policy", self.policy, POLICY_NAMES)
        check_range("--block-length", self.block_length, low=1, high=MAX_BLOCK_LENGTH)
        check_range("--alpha", self.alpha, low=1.0, high=64.0)
        check_range("--threshold", self.threshold, low=0.0, high=1.0, low_open=True)
        check_choice("--unmasking-strategy", self.unmasking_strategy, UNMASKING_STRATEGIES)
        if self.steps is not None:
            check_range("--steps", self.steps, low=1, high=self.block_length)
        check_range("--retain", self.retain, low=1)
        check_choice("--select", self.select, SELECTIONS)
        check_range("--focus-min-batch", self.focus_min_batch, low=1)
        check_choice("budget_average", self.budget_average, ("block", "sequence"))
        check_choice("attention_cover", self.attention_cover, ("progress", "rightmost"))

    @cached_property
    def alpha_fraction(self) -> Fraction:
        """The decimal that the user typed, exactly (2.1 is 21/10)."""
        return Fraction(str(self.alpha))

    @property
    def steps_per_block(self) -> int:
        """Steps of the static and sequential strategies."""
        return self.block_length if self.steps is None else self.steps


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Token sampling; temperature 0 is greedy. top_k 0 and top_p 1.0 filter nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        check_range("--temperature", self.temperature, low=0.0, high=100.0)
        check_range("--top-k", self.top_k, low=0)
        check_range("--top-p", self.top_p, low=0.0, high=1.0, low_open=True)


@dataclass(frozen=True, kw_only=True)
class AcceptanceConfig:
    """What decides how many masked positions are decoded in a step (algorithm section 4).

    kind "confidence": the unmasking strategy; "synthetic": 1 + Poisson(mean - 1) positions per
    sequence and step, ordered by left-to-right rank plus `scatter` times Gumbel noise; "replay":
    a recorded decode trace at `path`. `preset` names the data set whose published ratio the mean
    was fitted to, or the bundled model whose decode dynamics take the place of the Poisson counts
    (see decoding/dynamics.py); `mean` is then theirs.
    """

    kind: str = "confidence"
    mean: float = 0.0
    scatter: float = 0.0
    path: str = ""
    preset: str = ""

    def __post_init__(self) -> None:
        check_choice("--acceptance", self.kind, ("confidence", "synthetic", "replay"))
        if self.kind == "synthetic":
            check_range("--acceptance synthetic mean", self.mean, low=1.0, high=64.0)
            check_range("--acceptance synthetic scatter", self.scatter, low=0.0, high=64.0)
        if self.kind == "replay" and not self.path:
            raise UsageError("--acceptance", "replay:", "replay:FILE")

    @property
    def dynamics(self) -> str:
        """The bundled model whose fitted dynamics decide; "" where none do."""
        is_fitted = self.kind == "synthetic" and self.preset in BUNDLED_MODELS
        return self.preset if is_fitted else ""

    @property
    def label(self) -> str:
        """How every table and CSV row names it."""
        if self.dynamics:
            return (
                f"synthetic:{self.dynamics},scatter={self.scatter:g},fitted on {self.dynamics} "
                "traces"
            )
        if self.kind == "synthetic":
            preset = f"{self.preset}=" if self.preset else ""
            fitted = ",fitted" if self.preset else ""
            return f"synthetic:{preset}{self.mean:g},scatter={self.scatter:g}{fitted}"
        if self.kind == "replay":
            return f"replay:{self.path}"
        return self.kind


@dataclass(frozen=True, kw_only=True)
class ImportanceConfig:
    """What ranks masked positions for eviction (algorithm section 4).

    kind "model": the attention importance of layers 0 and 1; "synthetic": exp(-rank / tau) plus
    `noise` times a seeded standard normal, after running the importance computation at full cost.
    `fitted`: the parameters were fitted to a published ratio (this project's defaults).
    """

    kind: str = "model"
    tau: float = 0.0
    noise: float = 0.0
    fitted: bool = False

    def __post_init__(self) -> None:
        check_choice("--importance", self.kind, ("model", "synthetic"))
        if self.kind == "synthetic":
            check_range("--importance synthetic tau", self.tau, low=1e-6, high=1e6)
            check_range("--importance synthetic noise", self.noise, low=0.0, high=1e6)

    @property
    def label(self) -> str:
        """How every table and CSV row names it."""
        if self.kind == "synthetic":
            fitted = ",fitted" if self.fitted else ""
            return f"synthetic:tau={self.tau:g},noise={self.noise:g}{fitted}"
        return self.kind


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Batching and paging (algorithm section 5).

    `num_pages` None: as many as the executor has memory for (engine) or as the hardware profile
    says (simulator). `steps_per_round`: decode steps from one admission of waiting requests to the
    next (policy baseline). `stop_tokens` and `repetition_guard` are off under synthetic acceptance.
    """

    kind: str = "continuous"
    batch_size: int = 32
    page_size: int = 64
    num_pages: int | None = None
    max_prefill_tokens: int = 8192
    steps_per_round: int = 1
    stop_tokens: bool = True
    include_stop_token: bool = True
    repetition_guard: bool = True

    def __post_init__(self) -> None:
        check_choice("--scheduler", self.kind, ("continuous", "static"))
        check_range("--batch-size", self.batch_size, low=1, high=65536)
        check_range("--page-size", self.page_size, low=1, high=4096)
        if self.num_pages is not None:
            check_range("--num-pages", self.num_pages, low=1)
        check_range("--max-prefill-tokens", self.max_prefill_tokens, low=1)
        check_range("--steps-per-round", self.steps_per_round, low=1)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Which model runs and on what (`model`: name or checkpoint folder).

    `threads`: of a CPU; None: see engine.device.use_cpu_threads. `cuda_graphs`: whether a GPU
    replays captured graphs of a step's parts; "auto": where that was measured to be faster.
    """

    model: str
    load_format: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    mask_token_id: int | None = None
    threads: int | None = None
    cuda_graphs: str = "auto"

    def __post_init__(self) -> None:
        check_choice("--cuda-graphs", self.cuda_graphs, ("auto", "on", "off"))
        if self.threads is not None:
            check_range("--threads", self.threads, low=1, high=1024)
        check_choice("--load-format", self.load_format, ("auto", "dummy"))
        check_choice("--device", self.device, ("auto", "cpu", "cuda"))
        check_choice("--dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        check_range(
            "--gpu-memory-utilization",
            self.gpu_memory_utilization,
            low=0.0,
            high=1.0,
            low_open=True,
        )


@dataclass(frozen=True, kw_only=True)
class BackendConfig:
    """What serves the requests: this project's engine, or one from outside (see backends/).

    Of "openai": `base_url` up to and with its version ("http://localhost:8000/v1"), `api`
    ("completions" or "chat"), `served_model` (the server's name of the model; "": ask it),
    `prompt_format` ("tokens", "text", or "auto": token ids if the server takes them), and
    `request_timeout_s` for a whole reply. Of "lmdeploy": `options`, NAME=VALUE of its
    PytorchEngineConfig. A key for the server is never part of a configuration.
    """

    kind: str = ENGINE
    base_url: str = ""
    api: str = "completions"
    served_model: str = ""
    prompt_format: str = "auto"
    request_timeout_s: float = 600.0
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("--backend", self.kind, BACKENDS)
        check_choice("--endpoint", self.api, ("completions", "chat"))
        check_choice("--prompt-format", self.prompt_format, ("auto", "tokens", "text"))
        check_range("--request-timeout", self.request_timeout_s, low=0.0, low_open=True)

    @property
    def is_outside(self) -> bool:
        """Whether an engine serves that is not this project's."""
        return self.kind != ENGINE


@dataclass(frozen=True, kw_only=True)
class WorkloadConfig:
    """Which requests are sent and when (see workloads/).

    `random_input_len` and `random_output_len` (tokens; None: max_new_tokens) belong to dataset
    "random".
    """

    dataset: str = "sharegpt"
    dataset_path: str = ""
    num_prompts: int = 64
    max_new_tokens: int = 64
    request_rate: float = float("inf")
    burstiness: float = 1.0
    max_concurrency: int | None = None
    shuffle: bool = False
    repeat: bool = False
    download: bool = False
    ignore_eos: bool = False
    tokenizer: str = ""
    random_input_len: int = 1024
    random_output_len: int | None = None

    def __post_init__(self) -> None:
        check_range("--num-prompts", self.num_prompts, low=1, high=MAX_NUM_PROMPTS)
        check_range("--max-new-tokens", self.max_new_tokens, low=1)
        check_range("--request-rate", self.request_rate, low=1e-6)
        check_range("--burstiness", self.burstiness, low=1e-3, high=1e6)
        if self.max_concurrency is not None:
            check_range("--max-concurrency", self.max_concurrency, low=1)
        check_range("--random-input-len", self.random_input_len, low=1)
        if self.random_output_len is not None:
            check_range("--random-output-len", self.random_output_len, low=1)


@dataclass(frozen=True, kw_only=True)
class PointConfig:
    """Everything that one measured or predicted point depends on."""

    decode: DecodeConfig = field(default_factory=DecodeConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    engine: EngineConfig
    backend: BackendConfig = field(default_factory=BackendConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("--seed", self.seed, low=0, high=2**63 - 1)
        strategy = self.decode.unmasking_strategy
        if self.acceptance.kind == "synthetic" and strategy != "low_confidence_dynamic":
            raise UsageError(
                "--unmasking-strategy",
                strategy,
                "low_confidence_dynamic with --acceptance synthetic, which replaces it",
            )
        rounds = self.scheduler.steps_per_round
        if rounds > 1 and self.decode.policy != "baseline":
            raise UsageError(
                "--steps-per-round", rounds, f"1 with --policy {self.decode.policy}; more: baseline"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries, for run.json."""
        return dataclasses.asdict(self)

    def hash(self) -> str:
        """16 hexadecimal digits that name this point: equal configurations hash equally."""
        return self._hash

    @cached_property
    def _hash(self) -> str:
        # Tables of a sweep ask for it again and again, and each time took 0.3 ms.
        text = json.dumps(self.to_dict(), sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
