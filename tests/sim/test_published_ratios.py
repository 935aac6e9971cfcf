"""The paper's Table 5, by simulation: processed per decoded position at B = 32."""

import pytest
from sim_cases import make_point, make_workload, processed_per_decoded, simulate

from focus_bench.core.config import DecodeConfig, ImportanceConfig
from focus_bench.decoding.acceptance import PRESET_MEANS

TABLE_5_BASELINE = {
    ("sdar", "sharegpt"): 15.02,
    ("sdar", "wildchat"): 14.83,
    ("sdar", "math"): 7.45,
    ("llada2", "sharegpt"): 19.73,
    ("llada2", "wildchat"): 21.47,
    ("llada2", "math"): 10.13,
}
LONG = make_workload([32] * 64, 2048)


@pytest.mark.parametrize(("family", "dataset"), TABLE_5_BASELINE)
def test_the_baselines_ratio_is_the_published_one(family: str, dataset: str) -> None:
    record = simulate(make_point("baseline", mean=PRESET_MEANS[family][dataset]), LONG)
    published = TABLE_5_BASELINE[family, dataset]
    assert processed_per_decoded(record) == pytest.approx(published, abs=0.05)


def test_the_fitted_importance_gives_the_ratio_it_was_fitted_to() -> None:
    assert processed_per_decoded(simulate(make_point("focus"), LONG)) == pytest.approx(
        3.12, abs=0.05
    )


def test_noisier_importance_keeps_more() -> None:
    workload = make_workload([32] * 32, 640)
    ratios = [
        processed_per_decoded(
            simulate(
                make_point(importance=ImportanceConfig(kind="synthetic", tau=2.0, noise=noise)),
                workload,
            )
        )
        for noise in (0.0, 0.1, 0.3)
    ]
    assert ratios[0] < ratios[1] - 0.2 < ratios[2] - 0.8


def test_policies_order_as_they_must() -> None:
    workload = make_workload([32] * 32, 640)
    ratio = {
        policy: processed_per_decoded(simulate(make_point(policy), workload))
        for policy in (
            "baseline",
            "delayed-cache",
            "delayed-cache-neighbor",
            "focus-fixed",
            "focus",
            "ideal",
        )
    }
    order = sorted(ratio, key=lambda policy: -ratio[policy])
    assert order == [
        "baseline",
        "delayed-cache-neighbor",
        "delayed-cache",
        "focus-fixed",
        "focus",
        "ideal",
    ]


def test_a_larger_alpha_keeps_more() -> None:
    workload = make_workload([32] * 32, 640)
    ratios = [
        processed_per_decoded(
            simulate(make_point(decode=DecodeConfig(policy="focus", alpha=alpha)), workload)
        )
        for alpha in (1.2, 1.5, 1.8)
    ]
    assert ratios == sorted(ratios)
    assert ratios[2] > ratios[0] + 0.3
