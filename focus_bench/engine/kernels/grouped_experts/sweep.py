"""Finds the fastest tuning by size: `... .benchmarking grouped_experts --sweep`.

Whole calls in CUDA graphs with uniformly random choices of experts, beside today's choice
(tuning.py), the floor and torch's grouped product. Changes nothing: the table is edited by hand.
"""

import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import torch

from focus_bench.engine.kernels.benchmarking import Case, median_us, reason
from focus_bench.engine.kernels.expert_routing.launcher import SortedPairs, sort_by_expert
from focus_bench.engine.kernels.grouped_experts import launcher
from focus_bench.engine.kernels.grouped_experts.benchmark import (
    MODELS,
    NUM_TOKENS,
    TOP_K,
    Call,
    floor,
    random_weights,
    torch_alternatives,
)
from focus_bench.engine.kernels.grouped_experts.candidates import DOWN, GATE_UP, GROUP_TILES, first
from focus_bench.engine.kernels.grouped_experts.tuning import (
    MIN_BLOCK_M,
    ProductTuning,
    Tuning,
    tuning_for,
)

SWEPT = ("LLaDA2.0-mini", "SDAR-30B-A3B")
_REP_MS = 5
_NUM_BEST = 3
# Microseconds, or why there are none, in order of measurement.
Figures = dict[Tuning, float | str]


class Kernel(NamedTuple):
    """What is compiled once: one product of a tuning. `which`: gate_up or down."""

    which: str
    block_m: int
    group_tiles: int
    product: ProductTuning

    def __str__(self) -> str:
        return f"{self.which} m {self.block_m} group {self.group_tiles} {self.product}"


def run() -> list[dict[str, object]]:
    """Sweep every size of the models; prints as it goes, and returns a row per size."""
    rows: list[dict[str, object]] = []
    for name, experts, width, hidden, _ in MODELS:
        if name not in SWEPT:
            continue
        weights = random_weights(experts, width, hidden)
        todays = {
            tokens: tuning_for(tokens * TOP_K, experts, weights.down.dtype) for tokens in NUM_TOKENS
        }
        unfit = compile_all(Call.random(min(NUM_TOKENS), weights), needed(todays.values()))
        for kernel, why in unfit.items():
            print(f"{name}, left out: {kernel}: {why}", flush=True)
        for tokens, today in todays.items():
            call = Call.random(tokens, weights)
            rows.append(row(f"{name} T {tokens}", call, today, unfit))
            print(render(rows[-1]), flush=True)
            torch.cuda.empty_cache()
    return rows


def row(name: str, call: Call, today: Tuning, unfit: dict[Kernel, str]) -> dict[str, object]:
    """Figures of one size in microseconds; `tunings` has them all, the fastest first."""

    def measure(tuning: Tuning) -> float | str:
        for kernel in kernels(tuning):
            if kernel in unfit:
                return f"left out: {unfit[kernel]}"
        return median_us(lambda: call.ours(tuning), _REP_MS)

    figures = search(today, measure)
    num_bytes, flops = floor(call.x, call.weights, call.routing)
    case = Case(name=name, ours=call.ours, num_bytes=num_bytes, flops=flops)
    return {
        "case": f"{name}, {call.num_touched} experts",
        "floor": case.floor_us,
        **{label: median_us(other, _REP_MS) for label, other in torch_alternatives(call).items()},
        "today": str(today),
        "tunings": {str(tuning): figures[tuning] for tuning in ranked(figures)},
    }


def search(today: Tuning, measure: Callable[[Tuning], float | str]) -> Figures:
    """Measure today's choice, and for tiles of its rows and of half of them one product after the
    other, then the tiles that run together; each time from the fastest so far. About 24 at most.
    """
    figures: Figures = {}

    def fastest(tunings: Iterable[Tuning]) -> Tuning:
        """Of `tunings`; the first one if none can be measured."""
        mine = list(tunings)
        for tuning in mine:
            if tuning not in figures:
                figures[tuning] = measure(tuning)
        return ranked({tuning: figures[tuning] for tuning in mine})[0]

    fastest([today])
    for block_m in row_counts(today):
        start = first(block_m)
        chosen = fastest(replace(start, gate_up=product) for product in GATE_UP[block_m])
        fastest(replace(chosen, down=product) for product in DOWN[block_m])
    best = ranked(figures)[0]
    fastest(replace(best, group_tiles=tiles) for tiles in groups(best.block_m))
    return figures


def ranked(figures: Figures) -> list[Tuning]:
    """The fastest first; those without a figure last; ties in order of measurement."""

    def key(tuning: Tuning) -> float:
        figure = figures[tuning]
        return figure if isinstance(figure, float) else float("inf")

    return sorted(figures, key=key)


def row_counts(today: Tuning) -> list[int]:
    """Rows of the tiles that are tried: today's, and half of them unless that is too few."""
    return [m for m in (today.block_m, today.block_m // 2) if m >= MIN_BLOCK_M]


def groups(block_m: int) -> tuple[int, ...]:
    """How many tiles run together: one alone where an expert rarely has a second tile."""
    return GROUP_TILES if block_m >= 64 else (1,)


def kernels(tuning: Tuning) -> tuple[Kernel, Kernel]:
    """Both products of `tuning`."""
    return (
        Kernel("gate_up", tuning.block_m, tuning.group_tiles, tuning.gate_up),
        Kernel("down", tuning.block_m, tuning.group_tiles, tuning.down),
    )


def needed(todays: Collection[Tuning]) -> list[Kernel]:
    """All that searches from these tunings may launch."""
    found = [kernel for today in todays for kernel in kernels(today)]
    for block_m in sorted({m for today in todays for m in row_counts(today)}):
        for group in groups(block_m):
            for which, products in (("gate_up", GATE_UP), ("down", DOWN)):
                found += [Kernel(which, block_m, group, p) for p in products[block_m]]
    return list(dict.fromkeys(found))


def compile_all(call: Call, wanted: Collection[Kernel]) -> dict[Kernel, str]:
    """Compile in threads, and launch once; those that fail or spill, and why."""
    call.ours()  # so that only the products themselves are left
    weights, routing = call.weights, call.routing
    sorts = {
        block_m: sort_by_expert(routing.ids, weights.num_experts, block_m)
        for block_m in {kernel.block_m for kernel in wanted}
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reasons = list(pool.map(lambda kernel: _unfit(call, sorts[kernel.block_m], kernel), wanted))
    return {kernel: why for kernel, why in zip(wanted, reasons, strict=True) if why}


def _unfit(call: Call, rows: SortedPairs, kernel: Kernel) -> str:
    """Launch one product: why it must be left out, or nothing."""
    tuning = Tuning(
        block_m=kernel.block_m,
        group_tiles=kernel.group_tiles,
        gate_up=kernel.product,
        down=kernel.product,
    )
    weights, workspace = call.weights, call.workspace
    try:
        if kernel.which == "gate_up":
            compiled = launcher.gate_up(call.x, weights, rows, TOP_K, workspace.activations, tuning)
        else:
            compiled = launcher.down(
                workspace.activations,
                weights,
                rows,
                call.routing.weights,
                workspace.partials,
                tuning,
            )
    except Exception as error:  # of the compiler, or for want of shared memory or registers
        return reason(error)
    return f"{compiled.n_spills} registers spilled" if compiled.n_spills else ""


def render(row: dict[str, object]) -> str:
    """The three fastest tunings of a size, and today's with its rank, under the other figures."""
    tunings = row["tunings"]
    assert isinstance(tunings, dict)
    others = [f"{key} {_us(row[key])}" for key in ("floor", "torch", "torch products")]
    lines = [f"{row['case']}: {'  '.join(others)}  (us; {len(tunings)} tunings)"]
    for rank, (tuning, figure) in enumerate(tunings.items(), start=1):
        is_today = tuning == row["today"]
        if rank <= _NUM_BEST or is_today:
            lines.append(f"  {rank:2}. {_us(figure)}  {tuning}{'  (today)' if is_today else ''}")
    return "\n".join(lines)


def _us(figure: object) -> str:
    return f"{figure:.1f}" if isinstance(figure, float) else str(figure)
