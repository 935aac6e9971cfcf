"""New results against older ones: pairing, tests against SciPy, verdicts, and what is said."""

import csv
import dataclasses
import io

import pytest
import scipy.stats
from report_samples import PROVENANCE, make_point, make_request, make_result, make_run
from rich.console import Console

from focus_bench.core.errors import UsageError
from focus_bench.report.against import (
    COMPARED,
    Side,
    Verdict,
    against_csv,
    compare_against,
)
from focus_bench.report.against_table import against_table, regression_lines
from focus_bench.report.failures import PointFailure
from focus_bench.report.manifest import Manifest, new_manifest
from focus_bench.report.results import PointResult, result_of


def side(*results: PointResult, **changes: object) -> Side:
    return Side(results=results, **changes)  # type: ignore[arg-type]


def ran(policy: str = "focus", *tokens: int, source: str = "measured", **point: object):
    """A result whose runs put out so many tokens in 4 s each; its metrics are the first's."""
    return make_result(
        make_point(policy, **point),
        output_tokens=tokens[0],
        run_tokens=tokens if len(tokens) > 1 else (),
        source=source,
    )


def on(result: PointResult, *, hardware: str = "", **engine: object) -> PointResult:
    config = dataclasses.replace(result.point.engine, **engine)  # type: ignore[arg-type]
    point = dataclasses.replace(result.point, engine=config)
    return dataclasses.replace(result, point=point, hardware=hardware)


def rendered(report, width: int = 160) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(against_table(report))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_change_and_its_test_equal_scipys():
    new, old = (400, 404, 396, 402), (436, 444, 440)
    (point,) = compare_against(side(ran("focus", *new)), side(ran("focus", *old))).points
    throughput, ttft, tpot, _ = point.changes
    reference = scipy.stats.ttest_ind(new, old, equal_var=False)
    low, high = reference.confidence_interval(0.95)
    mean = sum(old) / 3
    assert throughput.percent == pytest.approx(100 * (400.5 / mean - 1), rel=1e-12)
    assert (throughput.new, throughput.old) == (400.5 / 4, mean / 4)
    assert throughput.half_width_percent == pytest.approx(100 * (high - low) / 2 / mean, rel=1e-9)
    gaps = [[2 / (n - 1) for n in tokens] for tokens in (new, old)]
    of_tpot = scipy.stats.ttest_ind(*gaps, equal_var=False)
    # Holm over four tests: TTFT and E2E are constants of both sides, so their p is 1.
    ascending = sorted((reference.pvalue, of_tpot.pvalue))
    adjusted = [4 * ascending[0], max(4 * ascending[0], 3 * ascending[1])]
    assert sorted((throughput.p, tpot.p)) == pytest.approx(adjusted, rel=1e-9)
    assert (ttft.p, ttft.percent, ttft.verdict) == (1.0, 0.0, Verdict.SAME)
    assert (throughput.verdict, tpot.verdict) == (Verdict.WORSE, Verdict.WORSE)


def test_direction_of_better():
    faster = compare_against(side(ran("focus", 500, 501)), side(ran("focus", 400, 401)))
    verdicts = [change.verdict for change in faster.points[0].changes]
    assert verdicts == [Verdict.BETTER, Verdict.SAME, Verdict.BETTER, Verdict.SAME]
    assert not faster.has_regression
    slower = compare_against(side(ran("focus", 400, 401)), side(ran("focus", 500, 501)))
    assert [change.verdict for change in slower.points[0].changes][::2] == [Verdict.WORSE] * 2
    assert slower.has_regression


def test_noise_is_no_regression_and_is_called_unclear_where_it_hides_one():
    noisy = compare_against(side(ran("focus", 300, 500)), side(ran("focus", 330, 510)))
    assert noisy.points[0].changes[0].verdict is Verdict.UNCLEAR
    assert not noisy.has_regression
    assert any(line.startswith("unclear: ") for line in rendered(noisy))
    quiet = compare_against(side(ran("focus", 4000, 4001)), side(ran("focus", 4000, 4002)))
    assert quiet.points[0].changes[0].verdict is Verdict.SAME
    assert not any(line.startswith("unclear: ") for line in rendered(quiet))


@pytest.mark.parametrize(
    ("new", "old", "tolerance", "is_regression"),
    [
        ((382,), (400,), None, False),  # -4.5 %, and TPOT +4.7 %
        ((379,), (400,), None, True),
        ((379,), (400,), 6.0, False),
        ((399,), (400,), 0.0, True),
        ((400,), (400,), 0.0, False),
        ((500,), (400,), None, False),
        ((379, 380), (400,), None, True),  # one run on a side: no test
        ((398, 398), (400, 400), None, True),  # tested: any significant change counts
        ((398, 398), (400, 400), 1.0, False),
    ],
)
def test_when_a_loss_counts(new, old, tolerance, is_regression):
    report = compare_against(
        side(ran("focus", *new)), side(ran("focus", *old)), tolerance_percent=tolerance
    )
    assert report.has_regression is is_regression
    assert (report.num_tests > 0) is (len(new) > 1 and len(old) > 1)
    assert bool(regression_lines(report)) is is_regression


def test_results_against_themselves_are_the_same_however_noisy() -> None:
    noisy = ran("focus", 200, 400, 600)
    itself = compare_against(side(noisy), side(noisy))
    assert itself.is_of_itself
    assert {change.verdict for change in itself.points[0].changes} == {Verdict.SAME}
    assert " ".join(rendered(itself)).count("in --against are identical: the same folder") == 1
    again = compare_against(side(ran("focus", 200, 401, 600)), side(noisy))
    assert not again.is_of_itself
    assert again.points[0].changes[0].verdict is Verdict.UNCLEAR
    assert "identical" not in " ".join(rendered(again))


def test_many_tests_are_adjusted_so_that_none_is_significant_by_chance():
    new, old = (400, 403, 406), (407, 410, 413)
    raw = scipy.stats.ttest_ind(new, old, equal_var=False).pvalue
    assert 0.05 / 4 < raw < 0.05  # alone it would be called significant
    batches = range(1, 11)
    report = compare_against(
        side(*(ran("focus", *new, batch_size=b) for b in batches)),
        side(*(ran("focus", *old, batch_size=b) for b in batches)),
    )
    assert report.num_tests == 40
    assert not report.has_regression
    assert all(point.changes[0].p == 1.0 for point in report.points)


def test_equal_points_are_those_of_equal_work_and_source():
    new = (ran("focus", 400), ran("focus", 390, source="predicted"), ran("focus", 5, seed=1))
    old = (ran("focus", 401), ran("focus", 391, source="predicted"), ran("baseline", 5))
    report = compare_against(side(*new), side(*old))
    assert [(p.new, p.old) for p in report.points] == list(zip(new[:2], old[:2], strict=True))
    assert report.only_new == (new[2],)
    assert report.only_old == (old[2],)
    lines = rendered(report)
    assert sum(line.startswith("only here: measured focus") for line in lines) == 1
    assert sum(line.startswith("only in --against: measured baseline") for line in lines) == 1
    rows = [line.split() for line in lines if line.startswith("focus ")]
    assert [row[3] for row in rows] == ["measured", "predicted"]
    with pytest.raises(UsageError, match="1 results of other points"):
        compare_against(side(new[0]), side(old[2]))


def test_the_most_alike_result_is_taken_and_other_devices_are_named():
    result = ran("focus", 400)
    h100, h200 = (on(result, hardware=name) for name in ("H100", "H200"))
    report = compare_against(side(h200, h100), side(h100, h200))
    assert [(p.new.hardware, p.old.hardware) for p in report.points] == [
        ("H200", "H200"),
        ("H100", "H100"),
    ]
    assert report.warnings == ()
    half = on(result, hardware="H100", dtype="bfloat16")
    report = compare_against(side(half), side(h200))
    assert report.warnings == (
        "hardware differs: H100 against H200 (at 1 of 1 points)",
        "dtype differs: bfloat16 against auto (at 1 of 1 points)",
    )
    other_data = dataclasses.replace(PROVENANCE, sha256="cd" * 32)
    changed = make_result(result.point, output_tokens=400, provenance=other_data)
    assert compare_against(side(changed), side(result)).warnings == (
        "the data's file differs (at 1 of 1 points)",
    )


def test_other_output_tokens_are_named():
    def of(tokens):
        metrics = dataclasses.replace(ran("focus", 400).metrics, output_digest=tokens)
        return dataclasses.replace(ran("focus", 400), metrics=metrics)

    assert compare_against(side(of("ab")), side(of("ab"))).warnings == ()
    (line,) = compare_against(side(of("ab")), side(of("cd"))).warnings
    assert line.startswith("the output tokens differ")


def test_versions_and_machines_that_differ_are_named():
    def manifest(**changes: object) -> Manifest:
        made = new_manifest((), command="run", seed=0, machine={"device": "NVIDIA H200"})
        base = dataclasses.replace(
            made,
            focus_bench_version="0.1.0",
            git_commit="abc",
            versions={"torch": "2.11", "rich": "15"},
        )
        return dataclasses.replace(base, **changes)  # type: ignore[arg-type]

    def warnings(new: Manifest, old: Manifest) -> tuple[str, ...]:
        result = ran("focus", 400)
        return compare_against(
            side(result, manifests=(new,)), side(result, manifests=(old,))
        ).warnings

    assert warnings(manifest(), manifest()) == ()
    torch = manifest(versions={"torch": "2.13", "rich": "14"})
    assert warnings(torch, manifest()) == ("torch differs: 2.13 against 2.11",)
    program = manifest(focus_bench_version="0.2.0")
    assert warnings(program, manifest()) == ("focus-bench differs: 0.2.0 abc against 0.1.0 abc",)
    machine = manifest(machine={"device": "NVIDIA A100", "gpu clocks.sm": "300 MHz"})
    assert warnings(machine, manifest()) == ("device differs: NVIDIA A100 against NVIDIA H200",)


def test_points_and_requests_that_fail_now_are_regressions():
    ok = [make_request(i) for i in range(3)]
    lost = [*ok[:2], make_request(2, finish_reason="error", error="no pages", output_tokens=0)]
    new, old = (
        result_of(make_point(), make_run(requests), provenance=PROVENANCE)
        for requests in (lost, ok)
    )
    report = compare_against(side(new), side(old), tolerance_percent=99.0)
    (line,) = regression_lines(report)
    assert line.endswith("failed requests 0 -> 1")
    assert report.has_regression
    assert not compare_against(side(old), side(new), tolerance_percent=99.0).has_regression

    gone = ran("focus", 400, batch_size=32)
    failure = PointFailure(
        point_hash=gone.point_hash,
        source="measured",
        hardware="",
        point=gone.point,
        reason="out of memory",
    )
    report = compare_against(side(old, failures=(failure,)), side(old, gone))
    assert report.has_regression
    (line,) = regression_lines(report)
    assert line.startswith("measured focus, batch 32, B 32")
    assert line.endswith("failed: out of memory")
    # A point that failed on both sides is no news.
    assert not compare_against(side(old, failures=(failure,)), side(old)).has_regression


def test_what_is_undefined_on_a_side_is_no_regression():
    nothing = result_of(make_point(), make_run(duration_s=0.0), provenance=PROVENANCE)
    report = compare_against(side(nothing), side(ran("focus", 400)))
    assert {change.verdict for change in report.points[0].changes} == {Verdict.UNKNOWN}
    assert not report.has_regression


@pytest.mark.parametrize("tolerance", [-1.0, float("nan")])
def test_a_tolerance_is_not_negative(tolerance):
    with pytest.raises(UsageError, match="--tolerance"):
        compare_against(side(ran("focus", 4)), side(ran("focus", 4)), tolerance_percent=tolerance)


def test_table_at_100_columns():
    new = side(ran("baseline", 400, 400), ran("focus", 300))
    report = compare_against(new, side(ran("baseline", 500, 500), ran("focus", 400)))
    lines = rendered(report, 100)
    first = next(i for i, line in enumerate(lines) if line.startswith("changes in percent"))
    assert lines[first : first + 3] == [
        "changes in percent: 100 * (new - old) / old, of means over the runs",
        "* significant: Welch's t-test at 5 %, adjusted by Holm for 4 tests; +-: half of its 95 % "
        "interval",
        "one run each: no test (! beyond 5 %, see --tolerance; --num-runs repeats)",
    ]
    rows = [line.split() for line in lines if line.startswith(("baseline", "focus"))]
    assert rows[0][3:] == [
        "worse",
        "2/2",
        "125",
        "100",
        "-20.0*",
        "0.0",
        "+0.0",
        "0.0",
        *rows[0][11:],
    ]
    assert rows[1][3:8] == ["worse", "1/1", "100", "75", "-25.0!"]
    assert lines[-1] == "regression"
    assert regression_lines(report)[0].endswith("output_throughput -20.0 % (p = 0)")
    assert "(no test)" in regression_lines(report)[-1]


@pytest.mark.parametrize("width", [40, 80])
def test_narrow_terminals_cut_the_table(width):
    report = compare_against(side(ran("focus", 400, 401)), side(ran("focus", 400, 402)))
    assert max(len(line) for line in rendered(report, width)) <= width


def test_csv_has_every_figure_of_every_pair():
    report = compare_against(
        side(ran("focus", 400, 404), ran("baseline", 5)),
        side(ran("focus", 500, 504), ran("baseline", 5)),
    )
    rows = list(csv.DictReader(io.StringIO(against_csv(report))))
    assert [row["figure"] for row in rows] == [figure.name for figure in COMPARED] * 2
    assert (rows[0]["runs"], rows[0]["old_runs"], rows[0]["verdict"]) == ("2", "2", "worse")
    change = report.points[0].changes[0]
    assert float(rows[0]["change_percent"]) == change.percent
    assert float(rows[0]["p_adjusted"]) == change.p
    assert rows[4]["p_adjusted"] == rows[4]["half_width_percent"] == ""
    assert "dummy weights" in rows[0]["notes"]
