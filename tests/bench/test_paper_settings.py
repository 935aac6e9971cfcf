"""The parts of the paper: which settings each has, and that equal points are run once."""

import dataclasses

import pytest

from focus_bench.bench.paper import (
    ALL_QUALITY,
    PARTS,
    QUALITY_PARTS,
    Setting,
    distinct_decodes,
    observed_point,
    parts_named,
    settings_of,
)
from focus_bench.core.config import DecodeConfig, EngineConfig, PointConfig, WorkloadConfig
from focus_bench.core.errors import UsageError
from focus_bench.report.paper.published import BENCHMARKS, LLADA2, SDAR


def decode(policy: str, threshold: float, **changes: object) -> DecodeConfig:
    base = DecodeConfig(policy=policy, threshold=threshold, block_length=16)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def settings(part: str) -> dict[tuple[str, ...], Setting]:
    return {s.names: s for s in settings_of(part, block_length=16)}


def test_parts_come_in_running_order_and_unknown_ones_are_refused() -> None:
    assert parts_named(["table3", "fig3", "table3"]) == ("fig3", "table3")
    assert parts_named(["fig2", ALL_QUALITY]) == PARTS
    with pytest.raises(UsageError, match=r"part: 'table9' .* table3"):
        parts_named(["table9"])


def test_table3_is_every_k_and_selection_with_both_models_scores() -> None:
    rows = settings("table3")
    assert len(rows) == 10
    row = rows["4", "random"]
    assert row.decode == decode("focus-fixed", 0.9, retain=4, select="random")
    assert row.compared_with == decode("baseline", 0.9)
    assert row.published[SDAR, "GSM8K"] == 61.04
    assert row.published[LLADA2, "IFEval"] == 73.34
    assert len(row.published) == 2 * len(BENCHMARKS)


def test_table4_compares_each_alpha_with_the_baseline_of_its_threshold() -> None:
    rows = settings("table4")
    assert len(rows) == 12
    row = rows["0.7", "focus", "1.8"]
    assert row.decode == decode("focus", 0.7, alpha=1.8)
    assert row.compared_with == decode("baseline", 0.7)
    assert row.published[SDAR, "MBPP"] == 53.89
    assert rows["0.8", "baseline", "-"].published[SDAR, "GSM8K"] == 87.57


def test_table6_has_focus_at_both_thresholds_and_an_ideal_bound() -> None:
    rows = settings_of("table6", block_length=16)
    assert [(s.decode.policy, s.decode.threshold) for s in rows] == [
        ("baseline", 0.9),
        ("delayed-cache", 0.9),
        ("delayed-cache-neighbor", 0.9),
        ("focus", 0.8),
        ("focus", 0.9),
        ("ideal", 0.9),
    ]
    # The paper's own row of FOCUS is the one at 0.8.
    assert rows[3].published[SDAR, "IFEval"] == 60.97
    assert not rows[5].published


def test_fig16_spans_thresholds_and_alphas() -> None:
    rows = settings_of("fig16", block_length=16)
    assert len(rows) == 5 + 4 * 5
    assert {s.decode.threshold for s in rows} == {0.5, 0.6, 0.7, 0.8, 0.9}
    assert {s.decode.alpha for s in rows if s.decode.policy == "focus"} == {1.2, 1.5, 1.8, 2.1}


def test_choices_differ_from_their_rule_in_one_thing() -> None:
    for row in settings_of("choices", block_length=16):
        if row.compared_with is not None:
            ours, rule = (dataclasses.asdict(d) for d in (row.decode, row.compared_with))
            assert sum(ours[name] != rule[name] for name in ours) == 1


def test_points_that_parts_share_are_run_once() -> None:
    every = distinct_decodes(PARTS, block_length=16)
    assert len(set(every)) == len(every)
    alone = sum(len(distinct_decodes([p], block_length=16)) for p in QUALITY_PARTS)
    # 10 of table 3; 5 of table 6 beyond the baseline; 9 of table 4; 7 choices; 13 of figure 16.
    assert (len(every), alone) == (10 + 5 + 9 + 7 + 13, 10 + 6 + 12 + 10 + 25)
    assert every[:2] == (
        decode("focus-fixed", 0.9, retain=2, select="top"),
        decode("baseline", 0.9),
    )


def test_the_observed_run_is_the_baseline_on_its_own_number_of_problems() -> None:
    base = PointConfig(
        engine=EngineConfig(model="dummy-tiny"),
        decode=DecodeConfig(block_length=16),
        workload=WorkloadConfig(num_prompts=500),
    )
    point = observed_point(base, num_problems=40)
    assert point.decode == decode("baseline", 0.9)
    assert point.workload.num_prompts == 40
