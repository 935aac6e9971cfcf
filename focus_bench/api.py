"""The Python interface: measure with an Engine, predict with simulate, set both side by side.

Engine and simulator load on first use, so importing this module needs neither torch nor SimPy.

    from focus_bench import Engine, simulate
    from focus_bench.api import load_workload, make_point

    point = make_point(policy="focus", batch_size=32, dataset="sharegpt")
    workload = load_workload(point)
    measured = Engine(point.engine.model).run(point, workload)
    predicted = simulate(point, workload, hardware="h200")
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.bench.defaults import default_tokenizer, resolved_engine
from focus_bench.bench.sweep import Axes, expand
from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.core.config import (
    EngineConfig,
    PointConfig,
    SamplingConfig,
    WorkloadConfig,
)
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import has_dummy_weights, resolve_model, spec_on_device
from focus_bench.core.model_spec import DEFAULT_MODEL, ModelSpec
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Provenance, RequestSpec, TokenArray, Workload
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.recorder import Recorder
from focus_bench.workloads.tokenizers import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from focus_bench.engine.models.base import BlockDiffusionModel
    from focus_bench.report.compare import Comparison

CPU = "cpu"
Progress = Callable[[Recorder], None]
StepCallback = Callable[[Plan, Outcome], None]


def make_point(
    *,
    model: str = DEFAULT_MODEL,
    dataset: str = "sharegpt",
    policy: str = "focus",
    batch_size: int = 32,
    block_length: int | None = None,
    alpha: float = 1.5,
    threshold: float = 0.9,
    unmasking_strategy: str = "low_confidence_dynamic",
    acceptance: str | None = None,
    importance: str | None = None,
    num_prompts: int = 64,
    max_new_tokens: int = 64,
    load_format: str = "auto",
    device: str = "auto",
    seed: int = 0,
) -> PointConfig:
    """One point with the command line's defaults; names and meanings are those of its flags.

    For what has no argument here use `dataclasses.replace` on the result. Raises UsageError.
    """
    axes = Axes(
        models=(model,),
        datasets=(dataset,),
        block_lengths=() if block_length is None else (block_length,),
        batch_sizes=(batch_size,),
        alphas=(alpha,),
        thresholds=(threshold,),
        strategies=(unmasking_strategy,),
        policies=(policy,),
        acceptance=acceptance,
        importance=importance,
    )
    base = PointConfig(
        engine=EngineConfig(model=model, load_format=load_format, device=device),
        workload=WorkloadConfig(num_prompts=num_prompts, max_new_tokens=max_new_tokens),
        seed=seed,
    )
    (point,) = expand(axes, base)
    return point


def load_workload(point: PointConfig) -> Workload:
    """The requests of a point, from its data set through its model's tokenizer."""
    return WorkloadCache().of(point)


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
        )
        self._setup(config, seed=seed, tokenizer=tokenizer)

    @classmethod
    def for_point(cls, point: PointConfig) -> "Engine":
        """The engine that a point needs."""
        engine = cls.__new__(cls)
        engine._setup(point.engine, seed=point.seed, tokenizer=point.workload.tokenizer)
        return engine

    def _setup(self, config: EngineConfig, *, seed: int, tokenizer: str) -> None:
        from focus_bench.engine.runner import device_settings
        from focus_bench.engine.weights import load_model

        self.config = config = resolved_engine(config)
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
        """Serve the workload in real time. `trace_file`: where to write the decode trace (.npz)."""
        from focus_bench.engine.runner import run_point

        self.check(point)
        record, trace = run_point(
            self._model,
            point,
            workload,
            on_progress=on_progress,
            decode_trace=trace_file is not None,
        )
        if trace_file is not None and trace is not None:
            trace_file.parent.mkdir(parents=True, exist_ok=True)
            trace.save(trace_file)
        return record

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
        provenance = Provenance(dataset="prompts", origin="caller", tokenizer=self.tokenizer.name)
        return Workload(requests=tuple(requests), provenance=provenance)


# How PyTorch calls the devices that have a data sheet here.
_DATA_SHEETS = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80g",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
}


def hardware_of_device(device: str) -> str:
    """What `simulate` calls the device that an engine names `device` (Engine.hardware).

    Raises UsageError for a GPU without a data sheet here.
    """
    if device in (CPU, *_DATA_SHEETS):
        return _DATA_SHEETS.get(device, CPU)
    raise UsageError("device", device, ", ".join((CPU, *_DATA_SHEETS)))


def simulate(
    point: PointConfig,
    workload: Workload | None = None,
    *,
    hardware: str,
    on_progress: Progress | None = None,
) -> RunRecord:
    """Predict a point on `hardware`, a data sheet's name such as "h200". Loads SimPy, not torch.

    `workload` None loads the point's. Raises UsageError for what cannot be simulated (confidences
    and importance scores of a model) and CapacityError for a model that does not fit.
    """
    from focus_bench.core.hardware import get_hardware
    from focus_bench.sim.roofline import RooflineModel
    from focus_bench.sim.simulate import pages_on_hardware, simulate_point

    if workload is None:
        workload = load_workload(point)
    device = get_hardware(hardware)
    spec = spec_on_device(resolve_model(point.engine), "cuda", dtype=point.engine.dtype)
    return simulate_point(
        point,
        workload,
        spec,
        cost_model=RooflineModel(spec=spec, hardware=device),
        num_pages=pages_on_hardware(point, spec, device),
        on_progress=on_progress,
    )


def compare(folder: Path | str, *, hardware: str | None = None) -> "tuple[Comparison, ...]":
    """Each measured point of a result folder beside a prediction of it, made now.

    The prediction knows the point's configuration and workload, none of its measured figures.
    `hardware` None: the data sheet of the device that measured. Raises UsageError for a folder
    without measurements, or whose data are not those of then.
    """
    from focus_bench.report.compare import pair_results
    from focus_bench.report.folder import load_folder
    from focus_bench.report.results import result_of

    measured = [r for r in load_folder(Path(folder)).results if r.source == "measured"]
    if not measured:
        raise UsageError("result folder", str(folder), "a folder with measured points")
    cache = WorkloadCache()
    predicted = []
    for result in measured:
        workload = cache.of(result.point)
        if workload.provenance.sha256 != result.provenance.sha256:
            raise UsageError(
                "data",
                f"{workload.provenance.path} with SHA-256 {workload.provenance.sha256}",
                f"the file that was measured, with SHA-256 {result.provenance.sha256}",
            )
        name = hardware or hardware_of_device(result.hardware)
        record = simulate(result.point, workload, hardware=name)
        predicted.append(
            result_of(result.point, record, provenance=workload.provenance, hardware=name)
        )
    return pair_results([*measured, *predicted])
