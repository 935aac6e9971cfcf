"""Profiles of GPUs: samples become curves, files survive, and what is wrong is said by name."""

import copy
import datetime
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_calibration_cases import (
    MINI,
    SETTINGS,
    SHEET,
    SPEC,
    experts_of,
    make_calibration,
    seconds_of,
    with_curve,
)

from focus_bench.core.calibration import COUNT_NAMES, dimensions_of
from focus_bench.core.costs import DecodeShape, PrefillShape, decode_ops, prefill_ops
from focus_bench.core.curve_floors import Widths, floor_s
from focus_bench.core.curve_samples import Sample, curves_of, held_out_errors, samples_csv
from focus_bench.core.errors import UsageError
from focus_bench.core.expert_load import UNIFORM_LOAD, ExpertLoad, MeasuredLoad
from focus_bench.core.gpu_profile_file import (
    from_json,
    load_gpu_calibration,
    save_gpu_calibration,
    to_json,
)
from focus_bench.core.model_spec import PRESETS, ModelSpec
from focus_bench.core.op_curves import CURVES, GpuCalibration, MeasuredExperts, curves_of_model
from focus_bench.core.profile_check import profile_problems

TODAY = datetime.date(2026, 2, 1)


def problems(calibration: GpuCalibration) -> list[str]:
    return profile_problems(calibration, today=TODAY)


# -- samples ---------------------------------------------------------------------------------------


def sample(curve: str, point: tuple[int, ...], seconds: float, round_: int = 0) -> Sample:
    return Sample(curve=curve, point=point, round=round_, sample=0, seconds=seconds)


def test_samples_of_all_rounds_become_sorted_medians() -> None:
    curves = curves_of(
        [
            sample("importance", (4, 8), 3.0),
            sample("importance", (1, 16), 2.0),
            sample("importance", (4, 8), 5.0, 1),
            sample("importance", (1, 8), 1.0),
            sample("importance", (4, 8), 100.0, 2),
        ]
    )
    assert list(curves) == ["importance"]
    curve = curves["importance"]
    assert curve.points.tolist() == [[1, 8], [1, 16], [4, 8]]
    assert curve.seconds.tolist() == [1, 2, 5]
    assert curve.axis("masked").tolist() == [8, 16, 8]
    assert curve.spread[:2].tolist() == [0, 0]
    # 3, 5, 100: the 16th percentile is 3.64, the 84th 69.6.
    assert curve.spread[2] == pytest.approx(0.5 * (69.6 - 3.64) / 5)
    assert (curve.held_out_p50, curve.held_out_max) == (None, None)


def test_a_point_that_is_left_out_is_interpolated_from_its_neighbours() -> None:
    points = np.array([[1.0], [3.0], [4.0], [8.0]])
    # 3 between 1 and 4: 10 + 2/3 * 6 = 14 for 20; 4 between 3 and 8: 20 + 1/5 * 20 = 24 for 16.
    errors = held_out_errors(points, np.array([10.0, 20.0, 16.0, 40.0]))
    assert errors == pytest.approx([0.3, 0.5])


def test_on_a_grid_the_mean_over_the_axes_is_the_estimate() -> None:
    axis = (1.0, 2.0, 3.0)
    points = np.array([[x, y] for x in axis for y in axis])
    seconds = points @ np.array([2.0, 5.0]) + 1.0
    assert held_out_errors(points, seconds) == pytest.approx([0.0] * 5, abs=1e-12)
    middle = seconds.copy()
    middle[4] *= 2.0
    errors = held_out_errors(points, middle)
    assert len(errors) == 5  # of nine points the corners have no axis with both neighbours
    assert errors.max() == pytest.approx(0.5)


def test_samples_as_csv() -> None:
    text = samples_csv([sample("compaction", (4, 16, 8), 1.5e-6, 2)])
    assert text == (
        "curve,clock,axes,point,round,sample,seconds\n"
        "compaction,device,sequencesxfedxkept,4x16x8,2,0,1.5e-06\n"
    )


# -- floors ----------------------------------------------------------------------------------------


def test_floors_are_the_work_that_the_simulator_counts() -> None:
    """Against core.costs, which counts whole steps; weights without activations."""
    widths = Widths.of(dimensions_of(SPEC))
    one = np.array([1], dtype=np.int64)
    step = DecodeShape(
        fed=4096 * one,
        kept=4096 * one,
        masked_fed=0 * one,
        first_keys=4096 * one,
        later_keys=4096 * one,
        head_rows=4096,
    )
    flops = {op.name: op.flops for op in decode_ops(SPEC.replace(num_layers=1), step)}
    for curve in ("qkv", "o", "gate_up", "down", "head"):
        floor = floor_s(curve, (4096,), widths, SHEET)
        assert floor == pytest.approx(flops[curve] / SHEET.dense_16bit_flops)
    attention = flops["attention_scores"] + flops["attention_values"]
    floor = floor_s("attention_decode", (1, 4096, 4096), widths, SHEET)
    assert floor == pytest.approx(attention / SHEET.dense_16bit_flops)
    chunk = PrefillShape(start=512 * one, length=2048 * one, block_length=32)
    prefill = sum(
        op.flops
        for op in prefill_ops(SPEC.replace(num_layers=2), chunk)
        if op.name.startswith("attention")
    )
    floor = floor_s("attention_prefill", (1, 2048, 512), widths, SHEET)
    assert floor == pytest.approx(prefill / SHEET.dense_16bit_flops)


def test_few_rows_wait_for_the_weights() -> None:
    widths = Widths.of(dimensions_of(SPEC))
    weights = 2 * 4096 * 24576
    assert floor_s("gate_up", (1,), widths, SHEET) == weights / SHEET.memory_bandwidth
    assert floor_s("swap_out", (64,), widths, SHEET) == pytest.approx(
        64 * SPEC.kv_bytes_per_token / SHEET.host_link_bandwidth
    )
    assert floor_s("launch_first", (64,), widths, SHEET) == 0.0
    assert floor_s("selection", (64,), widths, SHEET) == 2e-7


# -- files -----------------------------------------------------------------------------------------


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    calibration = make_calibration()
    path = tmp_path / "profile.json"
    save_gpu_calibration(calibration, path)
    again = load_gpu_calibration(path)
    assert to_json(again) == to_json(calibration)
    assert again.settings == SETTINGS
    for name, curve in calibration.curves.items():
        assert (again.curves[name].points == curve.points).all()
        assert again.curves[name].seconds == pytest.approx(curve.seconds, rel=1e-5)
    assert problems(again) == []


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value: dict[str, Any] = copy.deepcopy(json.loads(json.dumps(to_json(make_calibration()))))
    change(value)
    return value


def assert_refused(change: Callable[[dict[str, Any]], object], said: str) -> None:
    """A file so changed is refused in one line, which names it and what is wrong."""
    with pytest.raises(UsageError) as caught:
        from_json(changed(change), source="profile x.json")
    assert "profile x.json" in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.update(schema_version=1), "schema_version: 1 is not usable; allowed: 2"),
        (lambda v: v.update(kind="steps"), "kind: 'steps'"),
        (lambda v: v.pop("device"), "device: None"),
        (lambda v: v.update(date=""), "date: ''"),
        (lambda v: v["curves"].pop("head"), "curves: 'without head'"),
        (lambda v: v["steps"].pop("graph"), "steps: 'without graph'"),
        (lambda v: v["ceilings"].update(gemm_flops_per_s="fast"), "gemm_flops_per_s: 'fast'"),
        (lambda v: v["dimensions"].pop("head_dim"), "dimensions: 'without head_dim'"),
        (lambda v: v["dimensions"].update(head_dim=0), "head_dim: 0"),
        (lambda v: v["curves"]["qkv"].update(axes=["tokens"]), "curves qkv axes"),
        (lambda v: v["curves"]["qkv"].pop("spread"), "curves qkv: 'unreadable'"),
        (lambda v: v["curves"]["qkv"]["seconds"].pop(), "curves qkv seconds: 'of shape [4]'"),
        (lambda v: v["curves"]["qkv"].update(points=[[1, 2]]), "points: 'of shape [1, 2]'"),
        (lambda v: v["curves"]["qkv"].update(points=[]), "points: 'of shape [0]'"),
        (lambda v: v["curves"]["qkv"].update(held_out_p50="a"), "curves qkv: 'unreadable'"),
        (lambda v: v["curves"].update(qkv=3), "curves qkv: 'int'"),
        (lambda v: v["steps"]["eager"].pop("counts"), "steps eager"),
        (lambda v: v.update(curves=[]), "curves: 'list'"),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    assert_refused(change, said)


def count(value: dict[str, Any], name: str, number: int) -> None:
    value["steps"]["eager"]["counts"][name][0] = number


@pytest.mark.parametrize("name", COUNT_NAMES)
def test_every_count_of_a_step_has_a_limit(name: str) -> None:
    with pytest.raises(UsageError, match=rf"counts {name}\[0\]: .* to [0-9]"):
        from_json(changed(lambda v: count(v, name, 2**53 + 1)), source="profile x.json")


@pytest.mark.parametrize("value", [math.nan, math.inf, None, -1e-6, 0, True, "1e-6", 1e5])
def test_seconds_that_cannot_be_measured_are_refused(value: object) -> None:
    """Of curves and of steps, which may take none."""

    def of_curve(v: dict[str, Any]) -> None:
        v["curves"]["qkv"]["seconds"][1] = value

    def of_steps(v: dict[str, Any]) -> None:
        v["steps"]["graph"]["seconds"]["host"][1] = value

    with pytest.raises(UsageError, match=r"profile x.json curves qkv seconds\[1\]: .* number"):
        from_json(changed(of_curve), source="profile x.json")
    if value == 0:
        assert from_json(changed(of_steps), source="profile x.json")
        return
    with pytest.raises(UsageError, match=r"profile x.json steps graph seconds host\[1\]: "):
        from_json(changed(of_steps), source="profile x.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["curves"]["qkv"]["spread"].__setitem__(0, -0.1), "qkv spread[0]: '-0.1'"),
        (lambda v: v["curves"]["qkv"]["spread"].__setitem__(0, 1e300), "qkv spread[0]: '1e+300'"),
        (lambda v: v["curves"]["qkv"]["spread"].__setitem__(0, math.nan), "qkv spread[0]: 'NaN'"),
        (lambda v: v["curves"]["qkv"]["points"].__setitem__(2, [64]), "points: '64 after 64'"),
        (lambda v: v["curves"]["qkv"]["points"].__setitem__(2, [2]), "points: '2 after 64'"),
        (lambda v: v["curves"]["qkv"]["points"].__setitem__(0, [-1]), "points[0]: '-1'"),
        (lambda v: v["curves"]["qkv"]["points"].__setitem__(0, [None]), "points[0]: 'null'"),
        (lambda v: v["curves"]["compaction"]["points"].reverse(), "after"),
        (lambda v: v["ceilings"].update(copy_bytes_per_s=0), "copy_bytes_per_s: 0.0"),
        (lambda v: v["ceilings"].update(copy_bytes_per_s=math.nan), "copy_bytes_per_s: nan"),
        (lambda v: v["ceilings"].update(copy_bytes_per_s=math.inf), "copy_bytes_per_s: inf"),
        (lambda v: v["ceilings"].update(copy_bytes_per_s=10**400), "copy_bytes_per_s: inf"),
        (lambda v: v["dimensions"].update(dtype="float8"), "dimensions dtype: 'float8'"),
        (lambda v: v["steps"]["eager"]["counts"]["fed"].__setitem__(0, -32), "fed[0]: '-32'"),
        (lambda v: v["steps"]["eager"]["counts"]["fed"].__setitem__(0, 10**30), "unreadable"),
        (lambda v: count(v, "rows", 10**9), "rows[0]: '1000000000'"),
        (lambda v: count(v, "prefill_chunks", 65_537), "prefill_chunks[0]: '65537'"),
        (lambda v: count(v, "fed", 2**24 + 1), "number from 0 to 16777216"),
        (lambda v: count(v, "later_keys", 2**32 + 1), "number from 0 to 4294967296"),
        (lambda v: v.update(schema_version=2.0), "schema_version: 2.0"),
        (lambda v: v["curves"]["qkv"].update(held_out_p50=math.nan), "held_out_p50[0]: 'NaN'"),
    ],
)
def test_figures_that_no_measurement_gives_are_refused_by_name(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    assert_refused(change, said)


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(UsageError, match="'list' is not usable"):
        from_json([], source="profile x.json")


# -- checks ----------------------------------------------------------------------------------------


def test_a_believable_calibration_has_no_problems() -> None:
    assert problems(make_calibration()) == []


def test_every_fault_is_one_line() -> None:
    calibration = make_calibration(
        date="2026-13-01",
        kernel_revision="main",
        duration_s=0.0,
        settings={**SETTINGS, "driver": ""},
        ceilings={"copy_bytes_per_s": 6e12, "gemm_flops_per_s": 745e12},
    )
    found = problems(calibration)
    assert [line.split(":")[0] for line in found] == [
        "settings driver",
        "date",
        "kernel_revision",
        "duration_s",
        "ceilings copy_bytes_per_s",
    ]
    assert all("\n" not in line and "; " in line for line in found)


@pytest.mark.parametrize("date", ["2026-02-02", "2019-12-31", "today"])
def test_a_day_that_cannot_be(date: str) -> None:
    assert len(problems(make_calibration(date=date))) == 1


def test_steps_of_another_model_or_device() -> None:
    calibration = make_calibration(dimensions=dimensions_of(PRESETS["sdar-4b"]))
    assert "steps eager: of another model" in problems(calibration)[0]
    calibration = make_calibration(device="NVIDIA B200")
    assert problems(calibration)[0] == "steps eager: of NVIDIA H200, the curves of NVIDIA B200"


@pytest.mark.parametrize("value", [0.0, -1e-6, np.nan, np.inf, 11.0])
def test_seconds_that_no_call_takes(value: float) -> None:
    calibration = make_calibration()
    seconds = calibration.curves["gate_up"].seconds.copy()
    seconds[2] = value
    (line,) = problems(with_curve(calibration, "gate_up", seconds=seconds))
    assert line.startswith("gate_up at rows 128: seconds")


def test_samples_that_scatter() -> None:
    calibration = make_calibration()
    spread = np.full(5, 0.6)
    (line,) = problems(with_curve(calibration, "gate_up", spread=spread))
    assert line == "gate_up at rows 1: spread 0.6; allowed: 0 to 0.5 (the worst of 5)"
    assert problems(with_curve(calibration, "launch_first", spread=spread)) == []


def test_points_that_are_no_points() -> None:
    calibration = make_calibration()
    points = calibration.curves["gate_up"].points
    for bad in (points - 1, points + 0.5, points * np.nan):
        (line,) = problems(with_curve(calibration, "gate_up", points=bad))
        assert line == "gate_up points: allowed are whole numbers, at least [1]"
    (line,) = problems(with_curve(calibration, "gate_up", points=np.minimum(points, 512)))
    assert line == "gate_up points: some twice; each may be given once"


def test_faster_than_the_data_sheet() -> None:
    calibration = make_calibration()
    curve = calibration.curves["finish"]
    floor = floor_s("finish", (2048,), Widths.of(dimensions_of(SPEC)), SHEET)
    for share, refused in ((0.92, False), (0.9, True)):
        # A straight line down to it, so that nothing else is wrong.
        slope = (share * floor - curve.seconds[0]) / (2048 - 1)
        seconds = curve.seconds[0] + slope * (curve.points[:, 0] - 1)
        changed = with_curve(
            calibration, "finish", seconds=seconds, held_out_p50=0.0, held_out_max=0.0
        )
        found = [line for line in problems(changed) if "finish at rows 2048" in line]
        assert bool(found) == refused
    assert "us, by the data sheet" in found[0]


def test_a_device_without_a_data_sheet_is_not_held_against_one() -> None:
    calibration = make_calibration(ceilings={"copy_bytes_per_s": 9e12, "gemm_flops_per_s": 9e15})
    unknown = make_calibration(device="Some GPU", ceilings=calibration.ceilings)
    assert len(problems(calibration)) == 2
    assert all("steps" in line for line in problems(unknown))


def test_twice_the_work_in_less_time() -> None:
    """Beyond a tenth, the noise and what a kernel takes; a step down to less is a tile's."""
    calibration = make_calibration()
    curve = calibration.curves["selection"]  # without a floor to speak of

    def with_last(share: float, spread: float = 0.0, times: float = 1000.0) -> list[str]:
        seconds = times * curve.seconds
        seconds[-1] = share * seconds[1]
        errors = held_out_errors(curve.points, seconds)
        return problems(
            with_curve(
                calibration,
                "selection",
                seconds=seconds,
                spread=np.full(3, spread),
                held_out_p50=float(np.median(errors)),
                held_out_max=float(errors.max()),
            )
        )

    assert with_last(0.92) == []
    assert with_last(0.85, spread=0.02) == []
    assert with_last(0.85, times=1.0) == []
    (line,) = with_last(0.85)
    assert line.startswith("selection at sequences 256: ")
    assert line.endswith("allowed: 10%, 15 us and the noise less (the worst of 2)")


def test_an_error_that_is_not_its_points_own() -> None:
    calibration = make_calibration()
    for given in (None, 0.0, 0.9):
        (line,) = problems(with_curve(calibration, "qkv", held_out_max=given))
        assert line.startswith("qkv held_out_max: ")
        assert "its own points say" in line


def test_points_too_far_apart() -> None:
    calibration = make_calibration()
    seconds = calibration.curves["silu_mul"].seconds * np.array([1.0, 4.0, 1.0, 4.0, 1.0])
    errors = held_out_errors(calibration.curves["silu_mul"].points, seconds)
    found = problems(
        with_curve(
            calibration,
            "silu_mul",
            seconds=seconds,
            held_out_p50=float(np.median(errors)),
            held_out_max=float(errors.max()),
        )
    )
    assert any(line.startswith("silu_mul held_out_p50: ") for line in found)


@pytest.mark.parametrize("spec", [SPEC, MINI], ids=lambda spec: spec.name)
def test_every_curve_has_a_floor_or_is_the_hosts(spec: ModelSpec) -> None:
    widths = Widths.of(dimensions_of(spec), experts_of(spec))
    for name in curves_of_model(spec.experts):
        kind = CURVES[name]
        point = (64,) * len(kind.axes)
        floor = floor_s(name, point, widths, SHEET)
        assert (floor > 0) == (kind.clock == "device" or name.startswith("swap"))
        assert seconds_of(name, point, spec) > floor


# -- models with experts ---------------------------------------------------------------------------


def test_a_model_has_the_curves_of_its_layers() -> None:
    dense, mixed, all_experts = (
        set(curves_of_model(PRESETS[name].experts))
        for name in ("sdar-8b", "llada2-mini", "sdar-30b-a3b")
    )
    assert mixed == set(CURVES)
    assert mixed - dense == {"route", "experts", "dense_finish"}
    assert mixed - all_experts == {"gate_up", "down", "silu_mul", "dense_finish"}


def test_floors_of_experts_are_the_work_that_the_simulator_counts() -> None:
    widths = Widths.of(dimensions_of(MINI), experts_of(MINI))
    one = np.array([1], dtype=np.int64)
    for rows in (8192, 1):
        step = DecodeShape(
            fed=rows * one,
            kept=rows * one,
            masked_fed=0 * one,
            first_keys=64 * one,
            later_keys=64 * one,
            head_rows=0,
        )
        ops = {op.name: op for op in decode_ops(MINI.replace(num_layers=2), step)}
        parts = {
            "route": ("router",),
            "experts": ("expert_gate_up", "expert_down", "shared_gate_up", "shared_down"),
        }
        for curve, names in parts.items():
            found = floor_s(curve, (rows,), widths, SHEET)
            if rows > 1:
                flops = sum(ops[name].flops for name in names)
                assert found == pytest.approx(flops / SHEET.dense_16bit_flops)
            else:  # weights, and next to nothing else
                num_bytes = sum(ops[name].num_bytes for name in names)
                assert found == pytest.approx(num_bytes / SHEET.memory_bandwidth, rel=0.01)
    dense = Widths.of(dimensions_of(MINI.replace(experts=None)))
    for rows in (1, 4096):
        own = floor_s("dense_finish", (rows,), widths, SHEET)
        assert own == floor_s("finish", (rows,), dense, SHEET)


def test_a_calibration_with_experts_survives_its_file(tmp_path: Path) -> None:
    calibration = make_calibration(spec=MINI)
    assert problems(calibration) == []
    path = tmp_path / "profile.json"
    save_gpu_calibration(calibration, path)
    assert json.loads(path.read_text())["schema_version"] == 2
    again = load_gpu_calibration(path)
    assert to_json(again) == to_json(calibration)
    assert again.experts is not None
    assert again.experts.spec == MINI.experts
    assert again.experts.load.rows == calibration.experts.load.rows
    assert again.is_of(MINI)
    assert again.covers(PRESETS["llada2-flash"])
    assert again.covers(PRESETS["sdar-30b-a3b"])
    assert not again.covers(SPEC)
    assert "experts" not in to_json(make_calibration())
    no_dense = make_calibration(spec=PRESETS["sdar-30b-a3b"])
    assert not no_dense.covers(MINI)
    assert problems(no_dense) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.pop("spec"), "experts spec: 'NoneType'"),
        (lambda v: v["spec"].update(num_experts=0), "experts model num_experts: 0"),
        (lambda v: v["spec"].update(num_experts="many"), "experts: 'unreadable'"),
        (lambda v: v["spec"].update(size=3), "experts: 'unreadable'"),
        (lambda v: v.update(dense_width=0), "dense_width: 0"),
        (lambda v: v["load"].pop("touched"), "experts: 'unreadable'"),
        (lambda v: v["load"]["touched"].pop(), "expert load: 'lengths [4, 5]'"),
        (lambda v: v["load"].update(rows=[1, 1, 2, 3, 4]), "expert load: [1, 1, 2, 3, 4]"),
        (lambda v: v["load"].update(rows=[1, 2, 3, 4, 1e999]), "load rows[4]: 'Infinity'"),
        (lambda v: v["load"]["touched"].__setitem__(1, None), "load touched[1]: 'null'"),
    ],
)
def test_experts_that_are_none_are_refused_by_name(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    value = json.loads(json.dumps(to_json(make_calibration(spec=MINI))))
    change(value["experts"])
    with pytest.raises(UsageError) as caught:
        from_json(value, source="profile x.json")
    assert "profile x.json experts" in str(caught.value)
    assert said in str(caught.value)


def test_a_profile_with_experts_needs_their_curves() -> None:
    value = to_json(make_calibration(spec=MINI))
    curves = dict(value["curves"])
    del curves["dense_finish"]
    with pytest.raises(UsageError, match="without dense_finish"):
        from_json({**value, "curves": curves}, source="profile x.json")


def test_a_load_that_no_router_makes() -> None:
    calibration = make_calibration(spec=MINI)
    experts = calibration.experts
    assert experts is not None

    def with_load(**changes: tuple[float, ...]) -> list[str]:
        load = MeasuredLoad(**({**vars(experts.load)} | changes))
        changed = MeasuredExperts(spec=experts.spec, dense_width=experts.dense_width, load=load)
        found = problems(make_calibration(spec=MINI, experts=changed))
        return [line for line in found if line.startswith("experts at")]

    touched, shares = experts.load.touched, experts.load.largest_share
    assert with_load(touched=(8.5, *touched[1:])) == [
        "experts at rows 1: 8.5 touched; allowed: 8 to 8"
    ]
    (line,) = with_load(largest_share=(*shares[:-1], 0.2))
    assert line.startswith("experts at rows 2048: 0.2 of all choices")
    (line,) = with_load(largest_share=(*shares[:-1], 0.001))
    assert line.endswith("allowed: 0.003906 to 0.125")


def test_what_was_counted_is_kept_between_and_beyond() -> None:
    load = MeasuredLoad(rows=(1, 64, 128), touched=(8.0, 150.0, 190.0), largest_share=(0.125,) * 3)
    assert MINI.experts is not None
    found = [load.expected_touched(MINI.experts, n) for n in (0.5, 1, 32.5, 96, 128, 129, 10_000)]
    # One more token misses each of the 66 others with a chance of 31 in 32.
    assert found == pytest.approx([4.0, 8.0, 79.0, 170.0, 190.0, 190.0 + 66.0 / 32.0, 256.0])
    assert ExpertLoad().expected_touched(MINI.experts, 1.0) == pytest.approx(8.0)
    assert load != UNIFORM_LOAD


def test_of_a_hosts_points_the_fastest_round_is_kept() -> None:
    """A device's are the medians of all; whatever slows a host down lasts for a while."""
    seconds = {0: [3.0, 4.0, 9.0], 1: [8.0, 8.0, 9.0], 2: [5.0, 6.0, 6.0]}
    samples = [
        Sample(curve=curve, point=(1,), round=round_, sample=index, seconds=value)
        for curve in ("launch_head", "head")
        for round_, of_round in seconds.items()
        for index, value in enumerate(of_round)
    ]
    curves = curves_of(samples)
    assert curves["launch_head"].seconds.tolist() == [4.0]
    assert curves["head"].seconds.tolist() == [6.0]
