"""The throughputs and ratios that the paper reports, as it prints them. Never ours.

SDAR-8B-Chat on an A100-SXM4-80GB if not said otherwise, 5,000 requests, at most 2,048 new tokens,
means of two runs (Sections 5.3, F.1). Plots have no figures but those that the text gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BLOCK_LENGTH = 32  # where nothing else is said
DATASETS = ("sharegpt", "wildchat", "math")

# Table 5: policy -> data set -> positions processed in layers >= 2 for each decoded one.
PROCESSED_PER_DECODED: Mapping[str, Mapping[str, float]] = {
    "baseline": {"sharegpt": 15.02, "wildchat": 14.83, "math": 7.45},
    "focus": {"sharegpt": 3.12, "wildchat": 3.05, "math": 2.69},
}
# Table 7: policy -> data set -> output tokens per second at batch 1.
THROUGHPUT_BATCH_1: Mapping[str, Mapping[str, float]] = {
    "baseline": {"sharegpt": 57.5, "wildchat": 57.2, "math": 122.5},
    "focus": {"sharegpt": 63.3, "wildchat": 63.2, "math": 89.6},
}
# Fig. 6 as Section 5.3 has it: (policy, data set, batch) -> output tokens per second. The baseline
# "saturates at approximately 900 tokens/s across batch sizes 32 to 256".
THROUGHPUT: Mapping[tuple[str, str, int], float] = {
    **{("baseline", "sharegpt", batch): 900.0 for batch in (32, 64, 128, 256)},
    ("focus", "sharegpt", 256): 2272.0,
    ("focus", "wildchat", 256): 2324.0,
}


@dataclass(frozen=True, kw_only=True)
class PublishedPeak:
    """The largest speed-up over the baseline that the paper gives for a figure, and where."""

    factor: float
    where: str


PEAK_SPEEDUP: Mapping[str, PublishedPeak] = {
    "fig6": PublishedPeak(factor=2.32, where="batch 256, ShareGPT and WildChat"),
    "fig7": PublishedPeak(factor=3.52, where="B = 64"),
    "fig17": PublishedPeak(factor=2.33, where="H100-80G-PCIe"),
}

# What the text says of figures that are plots without numbers.
WORDS: Mapping[str, str] = {
    "fig8": "DC+ alone gives a base gain, eviction most of it",
    "fig15": "larger alpha generally helps, most at small batches, not in every setting",
}


@dataclass(frozen=True, kw_only=True)
class PublishedSpeed:
    """What the paper prints of one setting; None where it prints nothing."""

    output_throughput: float | None = None
    processed_per_decoded: float | None = None


def published_speed(part: str, *, policy: str, dataset: str, batch: int) -> PublishedSpeed:
    """The published figures of a row of a part, on the part's own hardware."""
    if part == "table5":
        ratios = PROCESSED_PER_DECODED.get(policy, {})
        return PublishedSpeed(processed_per_decoded=ratios.get(dataset))
    if part == "table7":
        return PublishedSpeed(
            output_throughput=THROUGHPUT_BATCH_1.get(policy, {}).get(dataset),
            processed_per_decoded=PROCESSED_PER_DECODED.get(policy, {}).get(dataset),
        )
    if part == "fig6":
        return PublishedSpeed(
            output_throughput=THROUGHPUT.get((policy, dataset, batch)),
            processed_per_decoded=PROCESSED_PER_DECODED.get(policy, {}).get(dataset),
        )
    return PublishedSpeed()
