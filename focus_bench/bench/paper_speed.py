"""The paper's throughput tables and figures as points to simulate, with what it reports of them.

Knows which points each part needs and why predictions and published figures may differ; runs and
renders nothing.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from focus_bench.bench.defaults import acceptance_for, importance_for, resolved_engine
from focus_bench.core.config import (
    DecodeConfig,
    EngineConfig,
    PointConfig,
    SchedulerConfig,
    WorkloadConfig,
)
from focus_bench.core.errors import UsageError, check_choice, check_range
from focus_bench.core.model_folder import resolve_model
from focus_bench.report.paper.published import LLADA2, SDAR
from focus_bench.report.paper.published_speed import DATASETS

SPEED_PARTS = (  # cheap ones first
    *("table5", "table7", "fig6", "fig8", "fig18", "fig19", "fig7", "fig15", "fig17"),
)
ALL_SPEED = "all-throughput"
MODELS = {"sdar-8b": SDAR, "llada2-mini": LLADA2}  # presets, and what the paper calls them
MODEL = "sdar-8b"
FAST_DLLM = "fast-dllm-v2"
FAST_DLLM_MODEL, PUBLISHED_FAST_DLLM_MODEL = "fast-dllm-v2-7b", "Fast-dLLM v2 7B"

A100, H100_PCIE = "a100-sxm4-80g", "h100-pcie"
BATCHES = (32, 64, 128, 256)
NUM_PROMPTS, MAX_NEW_TOKENS = 5000, 2048
_REQUESTS_AT_BATCH_1 = 64  # each has some hundred steps, whose times hardly differ
_POSITIONS_PER_ROUND = 128  # LMDeploy: 4 forwards a round at B = 32, 2 at B = 64


@dataclass(frozen=True, kw_only=True)
class Span:
    """What a part spans. `datasets` empty, or data sets are read: those that are asked for.

    `has_official_fast_dllm`: Fast-dLLM v2 runs as our model of its official code, on its own model
    in static batches, each request's memory reserved whole, not by pages.
    """

    title: str
    gpu: str = A100
    datasets: tuple[str, ...] = ()
    policies: tuple[str, ...] = ("baseline", "focus")
    batches: tuple[int, ...] = BATCHES
    block_lengths: tuple[int, ...] = (32,)
    alphas: tuple[float, ...] = (1.5,)
    has_official_fast_dllm: bool = False


SPANS: Mapping[str, Span] = {
    "table5": Span(
        title="Table 5: positions processed in layers >= 2 for each decoded one",
        datasets=DATASETS,
        batches=(256,),
    ),
    "table7": Span(title="Table 7: throughput at batch 1", datasets=DATASETS, batches=(1,)),
    "fig6": Span(title="Fig. 6: throughput by batch size"),
    "fig7": Span(title="Fig. 7: throughput by batch size at B = 16 and 64", block_lengths=(16, 64)),
    "fig8": Span(
        title="Fig. 8: the delayed cache with the neighbour rule (DC+) alone, and eviction",
        policies=("baseline", "delayed-cache-neighbor", "focus"),
    ),
    "fig15": Span(title="Fig. 15: throughput by alpha", alphas=(1.2, 1.5, 1.8, 2.1)),
    "fig17": Span(title="Fig. 17: throughput by batch size on an H100 PCIe", gpu=H100_PCIE),
    "fig18": Span(
        title="Fig. 18: FOCUS, and our model of Fast-dLLM v2's official code on its own 7B model",
        policies=(FAST_DLLM, "focus"),
        has_official_fast_dllm=True,
    ),
    "fig19": Span(
        title="Fig. 19: the mechanism of Fast-dLLM v2 in the same engine on the same model",
        policies=("baseline", FAST_DLLM, "focus"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class PaperSetup:
    """What all parts share. `tokenizer` "": ShareGPT's token lengths with SDAR's tokenizer stand
    for every data set's; else the data sets themselves are read, from `paths` where named.

    `in_rounds`: the baseline decodes several steps between admissions, as LMDeploy's does.
    """

    model: str = MODEL
    num_prompts: int = NUM_PROMPTS
    datasets: tuple[str, ...] = ("sharegpt",)
    tokenizer: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)
    download: bool = False
    in_rounds: bool = False
    seed: int = 0

    @property
    def published_model(self) -> str:
        """What the paper calls the model."""
        return MODELS[self.model]

    def published_models(self, part: str) -> str:
        """What the paper calls the models of a part."""
        if SPANS[part].has_official_fast_dllm:
            return f"{SDAR} and {PUBLISHED_FAST_DLLM_MODEL}"  # whatever is simulated
        return self.published_model

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            allowed = f"{', '.join(MODELS)} in {', '.join(SPEED_PARTS)}"
            raise UsageError("--model", self.model, allowed)
        check_range("--num-prompts", self.num_prompts, low=1)
        for name in (*self.datasets, *self.paths):
            check_choice("--dataset", name, DATASETS)
        if self.paths and not self.tokenizer:
            raise UsageError(
                "--dataset-path", ", ".join(self.paths), "a path together with --tokenizer FOLDER"
            )


@dataclass(frozen=True, kw_only=True)
class SpeedSetting:
    """One row of a part: the data set whose decoding it has, the point, and on which hardware."""

    dataset: str
    gpu: str
    point: PointConfig


def speed_parts_named(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the parts asked for that are simulated, in running order."""
    wanted = set(SPEED_PARTS) if ALL_SPEED in names else set(names)
    return tuple(part for part in SPEED_PARTS if part in wanted)


def speed_settings(
    part: str, setup: PaperSetup, *, gpus: Sequence[str] = ()
) -> tuple[SpeedSetting, ...]:
    """The rows of a part, in the table's order; `gpus` empty: the paper's own."""
    span = SPANS[part]
    settings: dict[tuple[str, str, str], SpeedSetting] = {}
    for gpu, dataset, block_length, batch, alpha, policy in itertools.product(
        gpus or (span.gpu,),
        setup.datasets if setup.tokenizer or not span.datasets else span.datasets,
        span.block_lengths,
        span.batches,
        span.alphas,
        span.policies,
    ):
        reads_alpha = policy == "focus"
        decode = DecodeConfig(
            policy=policy,
            block_length=block_length,
            alpha=alpha if reads_alpha else DecodeConfig().alpha,
        )
        is_official = policy == FAST_DLLM and span.has_official_fast_dllm
        point = _point(setup, dataset, decode, batch, is_official=is_official)
        setting = SpeedSetting(dataset=dataset, gpu=gpu, point=point)
        settings.setdefault((gpu, dataset, point.hash()), setting)
    return tuple(settings.values())


def _point(
    setup: PaperSetup, dataset: str, decode: DecodeConfig, batch: int, *, is_official: bool
) -> PointConfig:
    """`is_official`: Fast-dLLM v2 on its own model and in our model of its own engine."""
    engine = resolved_engine(EngineConfig(model=FAST_DLLM_MODEL if is_official else setup.model))
    acceptance = acceptance_for(
        None, engine=engine, family=resolve_model(engine).family, dataset=dataset
    )
    rounds = 1
    if setup.in_rounds and decode.policy == "baseline":
        rounds = max(1, _POSITIONS_PER_ROUND // decode.block_length)
    requests = setup.num_prompts if batch > 1 else min(setup.num_prompts, _REQUESTS_AT_BATCH_1)
    return PointConfig(
        engine=engine,
        decode=decode,
        acceptance=acceptance,
        importance=importance_for(None, engine=engine, acceptance=acceptance),
        scheduler=SchedulerConfig(
            kind="static" if is_official else "continuous",
            batch_size=batch,
            steps_per_round=rounds,
        ),
        workload=WorkloadConfig(
            dataset=dataset if setup.tokenizer else "synthetic",
            dataset_path=setup.paths.get(dataset, ""),
            tokenizer=setup.tokenizer,
            num_prompts=requests,
            max_new_tokens=MAX_NEW_TOKENS,
            download=setup.download,
        ),
        seed=setup.seed,
    )


def on_paper_hardware(part: str, gpu: str) -> bool:
    """Whether the paper's figures of a part are of this GPU."""
    return SPANS[part].gpu == gpu


def gap_reasons(part: str, setup: PaperSetup, *, is_calibrated: bool) -> tuple[str, ...]:
    """Why predicted and published figures of a part may differ, beside what the labels say."""
    reasons = [
        "gap, decoding: how many tokens a step decodes and which positions are kept is drawn; the "
        "counts are fitted to the baseline of Table 5 at threshold 0.9, the scores to SDAR's FOCUS "
        "on ShareGPT, and hold for every policy; the paper's FOCUS decodes at 0.8"
    ]
    if FAST_DLLM in SPANS[part].policies:
        reasons.append(
            "gap, sub-blocks: Fast-dLLM v2 draws the same counts, cut at what its sub-block of 8 "
            "still masks; nothing was fitted to it"
        )
    if SPANS[part].has_official_fast_dllm:
        reasons.append(
            "gap, engine: of Fast-dLLM v2's official code only the batches are modelled, static "
            "and without paging; its host time, its kernels, padding and what requests of a batch "
            "wait for each other are not, and no acceptance of its model is known: SDAR's is drawn"
        )
    if setup.num_prompts < max(SPANS[part].batches):
        reasons.append(
            f"gap, requests: {setup.num_prompts} never fill a larger batch; the paper serves 5,000"
        )
    if part == "table5":
        return tuple(reasons)
    lengths = "the data set's replies" if setup.tokenizer else "ShareGPT's replies, at random"
    reasons.append(
        f"gap, lengths: outputs are as long as {lengths}; the paper's are what the model answered, "
        "cut at repetitions"
    )
    if not is_calibrated:
        reasons.append(
            "gap, device: a data sheet's roofline knows no tiles, no padding and no kernel slower "
            "than its assumed efficiency; steps with few rows come out too fast, FOCUS's the most"
        )
    return tuple(reasons)
