"""Tunings of the experts' products: what is chosen and tried fits, and the sweep's bookkeeping."""

import itertools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from focus_bench.engine.kernels import benchmarking
from focus_bench.engine.kernels.grouped_experts import launcher, sweep
from focus_bench.engine.kernels.grouped_experts.benchmark import NUM_TOKENS, Call
from focus_bench.engine.kernels.grouped_experts.candidates import DOWN, GATE_UP, GROUP_TILES, first
from focus_bench.engine.kernels.grouped_experts.launcher import ExpertWeights
from focus_bench.engine.kernels.grouped_experts.tuning import (
    TABLE,
    ProductTuning,
    Tuning,
    tuning_for,
)

TODAYS = [
    tuning_for(8 * tokens, experts, torch.bfloat16)
    for tokens in NUM_TOKENS
    for experts in (128, 256)
]


def assert_fits(product: ProductTuning, num_weights: int, block_m: int) -> None:
    """A multiprocessor of an H200 has room for the programs, and their tiles divide the widths."""
    stage = 2 * product.block_k * (num_weights * product.block_n + block_m)
    # CUDA reserves 1 KB of a program's.
    assert product.programs_per_sm * (product.num_stages * stage + 1024) <= 227 * 1024
    threads = 32 * product.num_warps
    # Of 65,536 registers the sums in float32 take at most half: spills begin soon above.
    sums = num_weights * product.block_n * block_m
    assert sums <= 128 * threads
    assert product.programs_per_sm * sums <= 65536 // 2
    for width in (512, 768, 1024, 2048, 4096):
        assert width % product.block_n == 0
        assert width % product.block_k == 0


@pytest.mark.parametrize("num_experts", [128, 256])
@pytest.mark.parametrize("tokens", [1, 32, 256, 512, 1024, 2048, 8192])
def test_choices_fit(tokens: int, num_experts: int) -> None:
    chosen = tuning_for(8 * tokens, num_experts, torch.bfloat16)
    mean = 8 * tokens / num_experts
    assert 16 <= chosen.block_m <= 128
    assert chosen.block_m >= min(mean, 128)
    assert_fits(chosen.gate_up, 2, chosen.block_m)
    assert_fits(chosen.down, 1, chosen.block_m)


def test_the_table_covers_every_size_and_the_sweep_has_candidates_for_it() -> None:
    bounds = [most for most, _ in TABLE]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == math.inf
    for most, tuning in TABLE[:-1]:
        assert tuning_for(int(most), 1, torch.bfloat16) is tuning
        assert tuning_for(int(most) + 1, 1, torch.bfloat16) is not tuning
    assert {tuning.block_m for _, tuning in TABLE} <= GATE_UP.keys()
    assert tuning_for(8 * 8192, 128, torch.float32).block_m == 32


def test_candidates_fit() -> None:
    assert GATE_UP.keys() == DOWN.keys()
    for table, num_weights in ((GATE_UP, 2), (DOWN, 1)):
        for block_m, products in table.items():
            assert len(set(products)) == len(products)
            for product in products:
                assert_fits(product, num_weights, block_m)
    assert all(first(block_m).group_tiles in GROUP_TILES for block_m in GATE_UP)


@dataclass
class FakeTimer:
    """Microseconds that are a sum of what each choice costs; `broken` products have none."""

    costs: dict[object, float]
    broken: frozenset[ProductTuning] = frozenset()

    def __post_init__(self) -> None:
        self.log: list[Tuning] = []

    def __call__(self, tuning: Tuning) -> float | str:
        self.log.append(tuning)
        if {tuning.gate_up, tuning.down} & self.broken:
            return "broken"
        parts = (tuning.block_m, tuning.group_tiles, tuning.gate_up, tuning.down)
        named = zip(("block_m", "group", "gate_up", "down"), parts, strict=True)
        return 100.0 + sum(self.costs.get(part, 0.0) for part in named)


@pytest.mark.parametrize("today", sorted(set(TODAYS), key=str), ids=str)
def test_the_search_finds_the_cheapest_of_every_choice_with_few_measurements(
    today: Tuning,
) -> None:
    for block_m in sweep.row_counts(today):
        for gate_up, down in itertools.product(GATE_UP[block_m][::2], DOWN[block_m][1::2]):
            wanted = Tuning(
                block_m=block_m,
                group_tiles=sweep.groups(block_m)[-1],
                gate_up=gate_up,
                down=down,
            )
            timer = FakeTimer(
                {
                    ("block_m", block_m): -30.0,
                    ("group", wanted.group_tiles): -1.0,
                    ("gate_up", gate_up): -8.0,
                    ("down", down): -4.0,
                }
            )
            figures = sweep.search(today, timer)
            assert sweep.ranked(figures)[0] == wanted
            assert timer.log[0] == today
            assert list(figures) == timer.log
            assert len(set(timer.log)) == len(timer.log) <= 26
            launched = {kernel for tuning in timer.log for kernel in sweep.kernels(tuning)}
            assert launched <= set(sweep.needed([today]))


def test_a_choice_outside_the_candidates_is_measured_and_compiled_too() -> None:
    today = replace(TODAYS[0], down=replace(TODAYS[0].down, num_stages=7))
    timer = FakeTimer({("down", today.down): -50.0})
    assert sweep.ranked(sweep.search(today, timer))[0] == today
    assert set(sweep.kernels(today)) <= set(sweep.needed([today]))


def test_what_cannot_be_measured_is_ranked_last_and_no_start_for_others() -> None:
    today = first(16)
    timer = FakeTimer({}, broken=frozenset({today.gate_up}))
    figures = sweep.search(today, timer)
    assert figures[today] == "broken"
    ranked = sweep.ranked(figures)
    assert ranked[0].gate_up == GATE_UP[16][1]
    assert ranked[-1] == today
    assert {tuning.gate_up for tuning in timer.log[len(GATE_UP[16]) :]} == {GATE_UP[16][1]}
    nothing = FakeTimer({}, broken=frozenset(GATE_UP[16]))
    assert set(sweep.search(today, nothing).values()) == {"broken"}


@pytest.fixture
def tiny_call(kernel_device: torch.device) -> Call:
    weights = ExpertWeights(
        gate_up=torch.randn(8, 2 * 16, 32, device=kernel_device),
        down=torch.randn(8, 32, 16, device=kernel_device),
    )
    return Call.random(3, weights)


def test_a_row_shows_the_best_three_beside_todays_choice(
    tiny_call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Tuning] = []
    monkeypatch.setattr(Call, "ours", lambda self, tuning=None: asked.append(tuning))
    figures = itertools.chain([90.0, 50.0, 70.0, 60.0], itertools.repeat(80.0))

    def fake(function: Any, rep_ms: int) -> float | str:
        """Today's is the slowest; torch's operations are not called."""
        before = len(asked)
        if not isinstance(function, type(lambda: None)) or function.__name__ == "products":
            return 33.0
        function()
        assert len(asked) == before + 1
        return next(figures)

    monkeypatch.setattr(sweep, "median_us", fake)
    today = first(16)
    left_out = sweep.Kernel("gate_up", 16, 1, GATE_UP[16][-1])
    row = sweep.row("tiny", tiny_call, today, {left_out: "2 registers spilled"})
    assert str(row["case"]).startswith("tiny, ")
    tunings = row["tunings"]
    assert isinstance(tunings, dict)
    assert list(tunings.values())[:3] == [50.0, 60.0, 70.0]
    without = str(replace(today, gate_up=left_out.product))
    assert tunings[without] == "left out: 2 registers spilled"
    assert all(tuning.gate_up != left_out.product for tuning in asked)
    lines = sweep.render(row).splitlines()
    assert lines[0].endswith(f"torch 33.0  torch products 33.0  (us; {len(tunings)} tunings)")
    assert lines[1] == f"   1. 50.0  {replace(today, gate_up=GATE_UP[16][1])}"
    rank = len(tunings) - 1  # only what was left out comes later
    assert lines[4:] == [f"  {rank:2}. 90.0  {today}  (today)"]
    json.dumps(row)


def test_kernels_that_fail_or_spill_are_named(
    tiny_call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Compiled:
        n_spills: int

    def gate_up(*arguments: Any) -> Compiled:
        tuning = arguments[-1]
        assert arguments[2].block_m == tuning.block_m
        return Compiled(3 if tuning.gate_up == spilled.product else 0)

    def down(*arguments: Any) -> Compiled:
        if arguments[-1].down == failed.product:
            raise RuntimeError("out of resource: shared memory\nand more")
        return Compiled(0)

    wanted = sweep.needed([first(32)])
    spilled = next(k for k in wanted if k.which == "gate_up" and k.block_m == 32)
    failed = next(k for k in wanted if k.which == "down" and k.block_m == 16)
    monkeypatch.setattr(Call, "ours", lambda self: None)
    monkeypatch.setattr(launcher, "gate_up", gate_up)
    monkeypatch.setattr(launcher, "down", down)
    unfit = sweep.compile_all(tiny_call, wanted)
    assert unfit[spilled] == "3 registers spilled"
    assert unfit[failed] == "RuntimeError: out of resource: shared memory"
    products = {spilled.product, failed.product}
    assert {kernel.product for kernel in unfit} == products


def test_the_sweep_covers_every_size_of_its_models(
    tiny_call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = sweep.Kernel("down", 16, 1, DOWN[16][-1])
    seen: list[tuple[int, int, Tuning]] = []

    def row(name: str, call: Call, today: Tuning, unfit: dict[sweep.Kernel, str]) -> dict[str, Any]:
        assert unfit == {bad: "spills"}
        seen.append((call.weights.num_experts, len(call.x), today))
        return {"case": name}

    monkeypatch.setattr(sweep, "random_weights", lambda *shape: tiny_call.weights)
    monkeypatch.setattr(sweep, "compile_all", lambda call, wanted: {bad: "spills"})
    monkeypatch.setattr(sweep, "row", row)
    monkeypatch.setattr(sweep, "render", lambda row: row["case"])
    monkeypatch.setattr(sweep, "NUM_TOKENS", (2, 5))
    sizes = [f"{name} T {tokens}" for name in sweep.SWEPT for tokens in (2, 5)]
    assert [made["case"] for made in sweep.run()] == sizes
    assert [tokens for _, tokens, _ in seen] == [2, 5, 2, 5]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"LLaDA2.0-mini, left out: {bad}: spills"
    assert [line for line in printed if "left out" not in line] == sizes


def test_the_command_names_operations_without_a_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarking", "rms_norm", "--sweep"])
    with pytest.raises(SystemExit) as stopped:
        benchmarking.main()
    assert stopped.value.code == 2
    assert "rms_norm has no sweep; allowed: grouped_experts" in capsys.readouterr().err


def test_the_command_keeps_the_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweep, "run", lambda: [{"case": "tiny"}])
    file = tmp_path / "figures.json"
    monkeypatch.setattr("sys.argv", ["benchmarking", "--sweep", "--json", str(file)])
    benchmarking.main()
    assert json.loads(file.read_text()) == [{"op": "grouped_experts", "case": "tiny"}]
