"""A model on a device that runs points and completes prompts. Loads torch when it is made."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.api.points import make_point
from focus_bench.bench.defaults import default_tokenizer, resolved_engine
from focus_bench.core.calibration import CalibrationSamples
from focus_bench.core.config import EngineConfig, PointConfig, SamplingConfig
from focus_bench.core.cpu_waits import CpuWaits
from focus_bench.core.curve_samples import Sample
from focus_bench.core.decodability import DecodabilityRecords
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import has_dummy_weights
from focus_bench.core.model_spec import DEFAULT_MODEL, ModelSpec
from focus_bench.core.op_curves import GpuCalibration
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import CALLER, Provenance, RequestSpec, TokenArray, Workload
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.recorder import Recorder
from focus_bench.workloads.tokenizers import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from focus_bench.engine.models.base import BlockDiffusionModel

# A thread that waits for a core for more of a run than this is disturbed. On a machine of two cores
# threads waited 0.0 to 0.8 % of runs that kept their speed, and 32 % and more of slower ones.
BUSY_SHARE = 0.05

Progress = Callable[[Recorder], None]
StepCallback = Callable[[Plan, Outcome], None]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One completed prompt. `notes`: what stands for something else (dummy weights, ...)."""

    text: str
    token_ids: TokenArray
    num_prompt_tokens: int
    finish_reason: str
    notes: tuple[str, ...]


class Engine:
    """A model on a device, ready to run points and to complete prompts. Loads torch.

    Arguments are those of the flags with the same names; `seed` is that of dummy weights. Raises
    UsageError for what cannot be loaded and CapacityError for what does not fit into memory.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        load_format: str = "auto",
        device: str = "auto",
        dtype: str = "auto",
        gpu_memory_utilization: float = 0.9,
        mask_token_id: int | None = None,
        threads: int | None = None,
        cuda_graphs: str = "auto",
        tokenizer: str = "",
        seed: int = 0,
    ) -> None:
        config = EngineConfig(
            model=model,
            load_format=load_format,
            device=device,
            dtype=dtype,
            gpu_memory_utilization=gpu_memory_utilization,
            mask_token_id=mask_token_id,
            threads=threads,
            cuda_graphs=cuda_graphs,
        )
        self._setup(config, seed=seed, tokenizer=tokenizer)

    @classmethod
    def for_point(cls, point: PointConfig) -> "Engine":
        """The engine that a point needs."""
        engine = cls.__new__(cls)
        engine._setup(point.engine, seed=point.seed, tokenizer=point.workload.tokenizer)
        return engine

    def _setup(self, config: EngineConfig, *, seed: int, tokenizer: str) -> None:
        from focus_bench.engine.device import use_cpu_threads
        from focus_bench.engine.runner import device_settings
        from focus_bench.engine.weights import load_model

        self.config = config = resolved_engine(config)
        use_cpu_threads(config.threads)
        self.seed = seed
        self._model: BlockDiffusionModel = load_model(config, seed=seed)
        self.settings = device_settings(self._model)
        self._tokenizer_name = tokenizer or default_tokenizer(config)
        self._tokenizer: Tokenizer | None = None

    @property
    def spec(self) -> ModelSpec:
        """The model's dimensions, in the number format in which it runs."""
        return self._model.spec

    @property
    def hardware(self) -> str:
        """The device's name ("cpu", or the GPU's)."""
        return self.settings["device"]

    @property
    def has_dummy_weights(self) -> bool:
        """Whether the weights are random, so that text and confidences mean nothing."""
        return has_dummy_weights(self.config)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of prompts and completions."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._tokenizer_name)
        return self._tokenizer

    def check(self, point: PointConfig) -> None:
        """Raise UsageError if the point is for another model or cannot be measured."""
        from focus_bench.engine.runner import check_runnable

        if point.engine != self.config or point.seed != self.seed:
            raise UsageError("point", point.engine, f"points of {self.config}, seed {self.seed}")
        check_runnable(point)

    def warm_up(self, point: PointConfig) -> None:
        """Run a few short requests the way the point will, unmeasured."""
        from focus_bench.engine.runner import warm_up

        self.check(point)
        warm_up(self._model, point)

    def run(
        self,
        point: PointConfig,
        workload: Workload,
        *,
        on_progress: Progress | None = None,
        trace_file: Path | None = None,
    ) -> RunRecord:
        """Serve the workload in real time. `trace_file`: where to write the decode trace (.npz).

        The record's notes say whether other programs were using the CPU's cores meanwhile (where
        the system does not say that: when it began).
        """
        from focus_bench.engine.device import BUSY_NOTE, busy_cores
        from focus_bench.engine.runner import run_point

        self.check(point)
        is_busy = bool(busy_cores(self.hardware))
        before = CpuWaits.now()
        record, trace = run_point(
            self._model,
            point,
            workload,
            on_progress=on_progress,
            decode_trace=trace_file is not None,
        )
        waited = before.longest_share_since() if self._model.device.type == "cpu" else None
        if waited is not None:
            is_busy = waited > BUSY_SHARE
        if trace_file is not None and trace is not None:
            trace_file.parent.mkdir(parents=True, exist_ok=True)
            trace.save(trace_file)
        return dataclasses.replace(record, notes=(*record.notes, BUSY_NOTE)) if is_busy else record

    def evaluate(
        self, point: PointConfig, workload: Workload, *, on_progress: Progress | None = None
    ) -> RunRecord:
        """Serve the workload for the sake of its outputs, by any policy, `ideal` included (whose
        time means nothing), with a sampling seed of the point's own.
        """
        from focus_bench.engine.runner import run_point

        if point.engine != self.config:
            raise UsageError("point", point.engine, f"points of {self.config}")
        return run_point(self._model, point, workload, on_progress=on_progress)[0]

    def observe(
        self,
        point: PointConfig,
        workload: Workload,
        *,
        alphas: Sequence[float] = (1.5,),
        on_progress: Progress | None = None,
    ) -> tuple[DecodabilityRecords, RunRecord]:
        """Serve the workload by policy baseline and record the importance of every masked position
        in every layer, beside what each step decoded and what FOCUS would have kept.
        """
        from focus_bench.engine.analysis import observe_decoding

        if point.engine != self.config:
            raise UsageError("point", point.engine, f"points of {self.config}")
        return observe_decoding(
            self._model, point, workload, alphas=alphas, on_progress=on_progress
        )

    def measure_steps(self, *, seconds: float) -> CalibrationSamples:
        """Measure steps of every kind on random prompts, for a cost profile of this device."""
        from focus_bench.engine.calibrate import measure

        return measure(self._model, seconds=seconds)

    def measure_operations(self, *, seconds: float) -> tuple[GpuCalibration, list[Sample]]:
        """Measure the model's operations one by one on a GPU: the curves, and every sample.

        Raises UsageError on a CPU and for a model without fused layers.
        """
        from focus_bench.engine.calibrate_gpu import measure_operations
        from focus_bench.engine.op_timer import GraphTimer

        if self._model.device.type != "cuda":
            raise UsageError("--device", self.hardware, "cuda (operations are measured on a GPU)")
        return measure_operations(self._model, timer=GraphTimer(), seconds=seconds)

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        policy: str = "focus",
        max_new_tokens: int = 64,
        block_length: int | None = None,
        alpha: float = 1.5,
        threshold: float = 0.9,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        batch_size: int = 32,
        acceptance: str | None = None,
        importance: str | None = None,
        chat: bool = True,
        on_step: StepCallback | None = None,
    ) -> list[Completion]:
        """Complete prompts, in their order, `batch_size` at a time.

        `chat`: put each through the tokenizer's chat template, as one user turn. `on_step` is
        called with the plan and outcome of every step. Raises UsageError for a prompt that is
        empty, holds a mask token or is longer than the model takes.
        """
        from focus_bench.engine.runner import run_point

        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        point = make_point(
            model=self.config.model,
            policy=policy,
            batch_size=batch_size,
            block_length=block_length,
            alpha=alpha,
            threshold=threshold,
            acceptance=acceptance,
            importance=importance,
            max_new_tokens=max_new_tokens,
            load_format=self.config.load_format,
            seed=self.seed,
        )
        sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)
        point = dataclasses.replace(point, engine=self.config, sampling=sampling)
        self.check(point)
        workload = self._workload_of(texts, max_new_tokens=max_new_tokens, chat=chat)
        record, _ = run_point(self._model, point, workload, on_step=on_step)
        completions = []
        for request in record.requests:
            if request.finish_reason == "error":
                raise UsageError(
                    f"prompt {request.request_id}",
                    f"{request.prompt_tokens} tokens",
                    f"prompts that fit ({request.error})",
                )
            ids = record.output_ids[request.request_id]
            completions.append(
                Completion(
                    text=self.tokenizer.decode(ids),
                    token_ids=ids,
                    num_prompt_tokens=request.prompt_tokens,
                    finish_reason=request.finish_reason,
                    notes=record.notes,
                )
            )
        return completions

    def _workload_of(self, texts: list[str], *, max_new_tokens: int, chat: bool) -> Workload:
        requests = []
        for number, text in enumerate(texts):
            ids = self.tokenizer.chat_prompt(text)[0] if chat else self.tokenizer.encode(text)
            if not text.strip() or not len(ids):
                raise UsageError(f"prompt {number}", text, "a text that is not blank")
            requests.append(
                RequestSpec(request_id=number, prompt_ids=ids, max_new_tokens=max_new_tokens)
            )
        provenance = Provenance(dataset="prompts", origin=CALLER, tokenizer=self.tokenizer.name)
        return Workload(requests=tuple(requests), provenance=provenance)
