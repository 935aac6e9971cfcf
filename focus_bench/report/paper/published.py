"""The quality figures that the paper reports, as it prints them (arXiv 2601.23278). Never ours.

Scores are in percent: accuracy on GSM8K and Math500, pass@1 on HumanEval and MBPP, the mean of the
strict accuracies on IFEval; B = 32, means of two runs.
"""

from collections.abc import Mapping

SOURCE = "arXiv 2601.23278"
BENCHMARKS = ("GSM8K", "Math500", "HumanEval", "MBPP", "IFEval")
SDAR = "SDAR-8B-Chat"
LLADA2 = "LLaDA2.0-mini"

Published = Mapping[tuple[str, str], float]
"""(model, benchmark) -> percent."""

# Tables 3, 4 and 6: scores in the order of BENCHMARKS.
_Scores = tuple[float, float, float, float, float]
_TABLE3: Mapping[str, Mapping[tuple[int, str], _Scores]] = {
    SDAR: {
        (2, "top"): (90.33, 65.40, 71.65, 58.56, 61.78),
        (2, "random"): (40.38, 7.50, 4.88, 10.32, 47.35),
        (2, "bottom"): (33.44, 4.40, 1.22, 1.56, 43.85),
        (4, "top"): (90.60, 65.90, 70.12, 56.03, 60.88),
        (4, "random"): (61.04, 27.40, 15.55, 20.43, 48.14),
        (4, "bottom"): (51.82, 10.80, 3.97, 5.45, 43.82),
        (8, "top"): (89.84, 66.10, 68.90, 57.01, 60.26),
        (8, "random"): (78.55, 46.90, 43.29, 37.36, 53.46),
        (8, "bottom"): (60.39, 21.60, 9.15, 13.62, 44.35),
    },
    LLADA2: {
        (2, "top"): (89.99, 60.80, 84.76, 80.16, 82.74),
        (2, "random"): (51.71, 26.40, 16.77, 22.18, 70.47),
        (2, "bottom"): (12.67, 6.70, 7.32, 14.01, 62.20),
        (4, "top"): (91.02, 61.50, 85.68, 81.13, 83.25),
        (4, "random"): (76.20, 45.30, 36.59, 39.30, 73.34),
        (4, "bottom"): (40.52, 20.90, 11.59, 20.82, 67.25),
        (8, "top"): (90.22, 63.80, 83.54, 79.58, 81.91),
        (8, "random"): (84.58, 57.30, 64.64, 59.92, 75.12),
        (8, "bottom"): (67.18, 40.70, 23.17, 33.08, 68.54),
    },
}
# Keys: threshold, and alpha of FOCUS or None for the baseline.
_TABLE4: Mapping[tuple[float, float | None], _Scores] = {
    (0.9, None): (89.20, 64.70, 69.82, 56.81, 57.45),
    (0.9, 1.2): (89.84, 64.60, 72.56, 58.17, 60.97),
    (0.9, 1.5): (90.15, 64.30, 69.51, 61.09, 60.87),
    (0.9, 1.8): (90.75, 63.80, 71.34, 58.95, 60.11),
    (0.8, None): (87.57, 59.30, 65.85, 50.78, 58.69),
    (0.8, 1.2): (90.33, 64.10, 67.68, 58.56, 59.91),
    (0.8, 1.5): (89.73, 62.20, 69.21, 59.73, 60.97),
    (0.8, 1.8): (89.39, 62.10, 69.82, 56.81, 61.14),
    (0.7, None): (84.65, 54.60, 59.76, 50.58, 58.47),
    (0.7, 1.2): (89.24, 62.00, 68.29, 56.81, 61.91),
    (0.7, 1.5): (89.31, 62.20, 64.33, 55.25, 62.26),
    (0.7, 1.8): (88.03, 59.80, 64.33, 53.89, 60.08),
}
_TABLE6: Mapping[str, _Scores] = {
    "delayed-cache": (84.92, 59.20, 64.33, 49.81, 57.94),
    "delayed-cache-neighbor": (88.02, 63.70, 69.21, 52.14, 55.15),
}

# Section 2, on Fig. 2: tokens that a step yields on average, SDAR, B = 32.
TOKENS_PER_STEP = (2.00, 4.05)


def table3(retain: int, select: str) -> Published:
    """Fixed K with selection "top", "random" or "bottom" (Table 3); empty for other K."""
    return {
        (model, benchmark): value
        for model, rows in _TABLE3.items()
        for benchmark, value in zip(BENCHMARKS, rows.get((retain, select), ()), strict=False)
    }


def table4(threshold: float, alpha: float | None) -> Published:
    """Threshold and alpha on SDAR, alpha None for the baseline (Table 4); empty where not given."""
    return _of_sdar(_TABLE4.get((threshold, alpha)))


def table6(policy: str) -> Published:
    """Delayed cache with and without the neighbour rule on SDAR (Table 6); empty for others, whose
    rows there are rows of Table 4.
    """
    return _of_sdar(_TABLE6.get(policy))


def _of_sdar(scores: _Scores | None) -> Published:
    if scores is None:
        return {}
    return {(SDAR, b): value for b, value in zip(BENCHMARKS, scores, strict=True)}
