"""Seeds of one point taken together: exact errors and noise on hand-made results, and tables."""

import csv
import io

import numpy as np
import pytest
import scipy.stats
from report_samples import make_point, make_result
from rich.console import Console

from focus_bench.core.intervals import COSTS, COVERS, Interval, interval_settings
from focus_bench.report.compare import THROUGHPUT, error_summary, pair_results
from focus_bench.report.comparison_csv import comparison_csv
from focus_bench.report.judgement import errors_by_policy_table, seeds_table
from focus_bench.report.seeds import by_point, has_several_seeds, summary_over_points
from focus_bench.report.tables import comparison_table


def measured(seed, tokens=400, **changes):
    return make_result(make_point(seed=seed), output_tokens=tokens, **changes)


def predicted(seed, tokens=400, policy="focus", **changes):
    point = make_point(policy, seed=seed)
    return make_result(point, source="predicted", output_tokens=tokens, **changes)


def two_seeds():
    """Errors of +12.5 % and -10 %: another point's is 4 %."""
    other = make_result(make_point("baseline", seed=1))
    results = [measured(1), measured(2, 500), predicted(7, 450), other]
    return pair_results([*results, predicted(7, 416, "baseline")], any_seed=True)


def half_width_percent(values):
    low, high = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values)
    )
    return 50.0 * (high - low) / np.mean(values)


def render(item, width=120):
    file = io.StringIO()
    Console(file=file, width=width, markup=False, highlight=False).print(item)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def rows_of(lines, policy="focus"):
    return [line.split() for line in lines if line.startswith(f"{policy} ")]


def test_one_prediction_belongs_to_every_seed_of_its_point_only_if_asked():
    results = [measured(1), measured(2), predicted(7), measured(3, hardware="H200")]
    pairs = pair_results(results, any_seed=True)
    assert [p.point.seed for p in pairs] == [1, 2, 3]
    assert all(p.predicted is results[2] for p in pairs)
    assert [(p.measured is None, p.predicted is None) for p in pair_results(results)] == [
        *[(False, True)] * 3,
        (True, False),
    ]
    # Settings that make another point keep it apart, whatever the seed.
    other = predicted(1, policy="baseline")
    pairs = pair_results([measured(1), other], any_seed=True)
    assert [(p.measured is None, p.predicted is None) for p in pairs] == [
        (False, True),
        (True, False),
    ]


def test_errors_are_averaged_over_seeds_before_their_size_counts():
    pairs = two_seeds()
    focus, baseline = by_point(pairs)
    assert focus.error_percent(THROUGHPUT) == pytest.approx((12.5 - 10.0) / 2)
    assert baseline.error_percent(THROUGHPUT) == pytest.approx(4.0)
    each = error_summary(pairs, THROUGHPUT)
    assert (each.count, each.mape, each.worst) == (3, pytest.approx(26.5 / 3), pytest.approx(12.5))
    means = summary_over_points((focus, baseline), THROUGHPUT)
    assert (means.count, means.mape, means.worst) == (2, pytest.approx(2.625), pytest.approx(4.0))


def test_noise_is_between_seeds_each_the_mean_of_its_runs():
    runs = ((380, 420), (450, 510, 540), (430,))
    results = [measured(i, run_tokens=tokens) for i, tokens in enumerate(runs)]
    (group,) = by_point(pair_results([*results, predicted(9)], any_seed=True))
    assert (len(group.pairs), group.num_runs) == (3, 6)
    assert group.noise_percent(THROUGHPUT) == pytest.approx(half_width_percent([400, 500, 430]))
    (alone,) = by_point(pair_results([results[1], predicted(1)]))
    assert alone.noise_percent(THROUGHPUT) == pytest.approx(half_width_percent(runs[1]))
    (once,) = by_point(pair_results([results[2], predicted(2)]))
    assert once.noise_percent(THROUGHPUT) is None


def test_devices_are_not_taken_together():
    results = [measured(1, hardware="A"), measured(2, hardware="B")]
    groups = by_point(
        pair_results([*results, predicted(1), predicted(1, hardware="H200")], any_seed=True)
    )
    assert [len(group.pairs) for group in groups] == [1, 1, 1, 1]
    assert not has_several_seeds(groups)


def test_the_table_of_points_has_one_line_for_all_seeds():
    lines = render(seeds_table(two_seeds()))
    (row,) = rows_of(lines)
    noise = half_width_percent([400, 500])
    # The seed stands nowhere; latencies are the same in every run.
    assert row[:7] == ["focus", "8", "32", "2", "2", "+1.2", f"{noise:.1f}"]
    assert row[7:] == ["+0.0", "0.0", "+0.0", "0.0"]
    (row,) = rows_of(lines, "baseline")
    assert row[3:7] == ["1", "1", "+4.0", "-"]


def test_tables_say_what_is_over_seeds_and_what_over_points():
    pairs = two_seeds()
    lines = render(errors_by_policy_table(pairs))
    assert "of means: errors of a point are averaged over its seeds first" in lines
    assert "predicted with seed 7" in lines
    (row,) = [r for r in rows_of(lines, "all") if r[1] == "output_throughput"]
    assert row[2:8] == ["3", "8.8", "12.5", "2", "2.6", "4.0"]
    results = [result for pair in pairs for result in pair.results]
    (row,) = rows_of(render(comparison_table(results, any_seed=True)), "all")
    assert row == ["all", "3", "8.8", "12.5", "2", "2.6", "4.0"]
    assert render(comparison_table(results)) == ["no point was both measured and predicted"]


def test_without_several_seeds_nothing_more_is_shown():
    pairs = pair_results([measured(3), predicted(3, 440)])
    assert seeds_table(pairs) is None
    lines = render(errors_by_policy_table(pairs))
    assert "predicted with each run's own seed" in lines
    assert not any("means" in line for line in lines)
    assert rows_of(lines)[0] == ["focus", "output_throughput", "1", "10.0", "10.0", "-", "-"]


def test_the_legend_says_what_intervals_allow_for():
    settings = {COVERS: COSTS, **interval_settings({"ttft_p50_s": Interval(low=0.5, high=2.0)})}
    pairs = pair_results([measured(3), predicted(3, settings=settings)])
    assert "predicted with each run's own seed; intervals allow for costs" in render(
        errors_by_policy_table(pairs)
    )
    rows = {row["figure"]: row for row in csv.DictReader(io.StringIO(comparison_csv(pairs)))}
    assert rows["ttft_p50_s"]["interval_covers"] == "costs"
    assert rows["e2e_p50_s"]["interval_covers"] == ""


def test_csv_has_both_seeds_and_the_mean_over_seeds():
    text = comparison_csv(two_seeds())
    rows = [r for r in csv.DictReader(io.StringIO(text)) if r["figure"] == "output_throughput"]
    assert [(r["seed"], r["predicted_seed"], r["seeds"]) for r in rows] == [
        ("1", "7", "2"),
        ("2", "7", "2"),
        ("1", "7", "1"),
    ]
    assert [float(r["error_percent"]) for r in rows] == pytest.approx([12.5, -10.0, 4.0])
    assert [float(r["seeds_error_percent"]) for r in rows] == pytest.approx([1.25, 1.25, 4.0])
    noises = [r["seeds_half_width_percent"] for r in rows]
    assert float(noises[0]) == float(noises[1]) == pytest.approx(half_width_percent([400, 500]))
    assert noises[2] == ""
