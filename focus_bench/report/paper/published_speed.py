"""The throughputs and ratios that the paper reports, as it prints them. Never ours.

On an A100-SXM4-80GB if not said otherwise, 5,000 requests, at most 2,048 new tokens,
means of two runs (Sections 5.3, F.1). Plots have no figures but those that the text gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from focus_bench.report.paper.published import LLADA2, SDAR

BLOCK_LENGTH = 32  # where nothing else is said
DATASETS = ("sharegpt", "wildchat", "math")

_Figures = Mapping[str, Mapping[str, float]]
"""policy -> data set -> figure."""

# Table 5: positions processed in layers >= 2 for each decoded one.
PROCESSED_PER_DECODED: Mapping[str, _Figures] = {
    SDAR: {
        "baseline": {"sharegpt": 15.02, "wildchat": 14.83, "math": 7.45},
        "focus": {"sharegpt": 3.12, "wildchat": 3.05, "math": 2.69},
    },
    LLADA2: {
        "baseline": {"sharegpt": 19.73, "wildchat": 21.47, "math": 10.13},
        "focus": {"sharegpt": 4.19, "wildchat": 4.30, "math": 3.04},
    },
}
# Table 7: output tokens per second at batch 1.
THROUGHPUT_BATCH_1: Mapping[str, _Figures] = {
    SDAR: {
        "baseline": {"sharegpt": 57.5, "wildchat": 57.2, "math": 122.5},
        "focus": {"sharegpt": 63.3, "wildchat": 63.2, "math": 89.6},
    },
    LLADA2: {
        "baseline": {"sharegpt": 45.5, "wildchat": 42.6, "math": 90.7},
        "focus": {"sharegpt": 43.2, "wildchat": 41.7, "math": 70.9},
    },
}
# Fig. 6 as Section 5.3 has it: (policy, data set, batch) -> output tokens per second. SDAR's
# baseline "saturates at approximately 900 tokens/s across batch sizes 32 to 256".
THROUGHPUT: Mapping[str, Mapping[tuple[str, str, int], float]] = {
    SDAR: {
        **{("baseline", "sharegpt", batch): 900.0 for batch in (32, 64, 128, 256)},
        ("focus", "sharegpt", 256): 2272.0,
        ("focus", "wildchat", 256): 2324.0,
    },
    LLADA2: {
        ("baseline", "sharegpt", 256): 2181.0,
        ("focus", "sharegpt", 256): 3369.0,
    },
}


@dataclass(frozen=True, kw_only=True)
class PublishedPeak:
    """The largest speed-up of FOCUS that the paper gives for a figure, over what and where."""

    factor: float
    where: str
    over: str = "baseline"


PEAK_SPEEDUP: Mapping[str, PublishedPeak] = {
    "fig6": PublishedPeak(factor=2.32, where="SDAR, batch 256, ShareGPT and WildChat"),
    "fig7": PublishedPeak(factor=3.52, where="SDAR, B = 64"),
    "fig17": PublishedPeak(factor=2.33, where="H100-80G-PCIe"),
    "fig18": PublishedPeak(
        factor=8.35, where="SDAR, ShareGPT, over its official code", over="fast-dllm-v2"
    ),
    "fig19": PublishedPeak(
        factor=1.91,
        where="at larger batch sizes; over what is not said, taken as over Fast-dLLM v2",
        over="fast-dllm-v2",
    ),
}

# What the text says of figures that are plots without numbers.
WORDS: Mapping[str, str] = {
    "fig8": "DC+ alone gives a base gain, eviction most of it",
    "fig15": "larger alpha generally helps, most at small batches, not in every setting",
    "fig18": "the text gives the largest factor only, neither throughputs nor batch sizes; the "
    "batch sizes here are those of Fig. 6",
    "fig19": "Fast-dLLM v2's mechanism improves over the baseline, FOCUS scales better; the text "
    "gives the largest factor only, no throughputs",
}


@dataclass(frozen=True, kw_only=True)
class PublishedSpeed:
    """What the paper prints of one setting; None where it prints nothing."""

    output_throughput: float | None = None
    processed_per_decoded: float | None = None


def published_speed(
    part: str, *, model: str, policy: str, dataset: str, batch: int
) -> PublishedSpeed:
    """The published figures of a row of a part, on the part's own hardware."""
    ratio = PROCESSED_PER_DECODED[model].get(policy, {}).get(dataset)
    if part == "table5":
        return PublishedSpeed(processed_per_decoded=ratio)
    if part == "table7":
        speed = THROUGHPUT_BATCH_1[model].get(policy, {}).get(dataset)
        return PublishedSpeed(output_throughput=speed, processed_per_decoded=ratio)
    if part == "fig6":
        speed = THROUGHPUT[model].get((policy, dataset, batch))
        return PublishedSpeed(output_throughput=speed, processed_per_decoded=ratio)
    return PublishedSpeed()
