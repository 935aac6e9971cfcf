"""Times kernels beside their alternatives: `python -m focus_bench.engine.kernels.benchmarking`.

Each operation's benchmark.py lists its cases; this file times them with device events and prints
the median beside the floor that the bytes moved and the arithmetic set. With --sweep it times an
operation's candidates for its tuning instead, which its sweep.py lists.
"""

import argparse
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import triton.testing

# Ceilings of one H200 (laboratory log): a large device copy, and a large bf16 matrix product.
BYTES_PER_S = 4.24e12
FLOPS_PER_S = 745e12


@dataclass(frozen=True, kw_only=True)
class Case:
    """One shape of one operation.

    `ours` launches the kernel once; `others` names alternatives that compute the same. `num_bytes`
    and `flops`: what any implementation must move and compute at least.
    """

    name: str
    ours: Callable[[], object]
    others: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    num_bytes: float = 0.0
    flops: float = 0.0

    @property
    def floor_us(self) -> float:
        """Microseconds that the larger of bytes and arithmetic takes at the ceilings."""
        return max(self.num_bytes / BYTES_PER_S, self.flops / FLOPS_PER_S) * 1e6


def operations(kind: str) -> list[str]:
    """Names of the folders that have a file `kind`.py: a benchmark or a sweep."""
    return sorted(p.parent.name for p in Path(__file__).parent.glob(f"*/{kind}.py"))


def median_us(function: Callable[[], object], rep_ms: int = 20) -> float | str:
    """Median microseconds of one call within a CUDA graph, so that launches do not count.

    A graph of about `rep_ms` is replayed ten times. If the call fails: why, in a few words.
    """
    try:
        torch.cuda.synchronize()  # the call's inputs were made on another stream than the graph's
        return 1e3 * float(
            triton.testing.do_bench_cudagraph(function, rep=rep_ms, return_mode="median")
        )
    except Exception as error:  # an alternative may not support the shape or the GPU
        return reason(error)


def reason(error: Exception) -> str:
    """One line that fits into a table."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:80]


def run(names: list[str]) -> list[dict[str, float | str]]:
    """Time every case of the named operations; an alternative that fails is left out, by name."""
    rows: list[dict[str, float | str]] = []
    for name in names:
        module = importlib.import_module(f"focus_bench.engine.kernels.{name}.benchmark")
        for case in module.cases():
            row: dict[str, float | str] = {"op": name, "case": case.name, "floor": case.floor_us}
            for label, function in {"ours": case.ours, **case.others}.items():
                row[label] = median_us(function)
            rows.append(row)
            torch.cuda.empty_cache()
            print(_line(row), flush=True)
    return rows


def sweep(names: list[str]) -> list[dict[str, object]]:
    """The named operations' candidates, timed; each prints its own table."""
    rows: list[dict[str, object]] = []
    for name in names:
        module = importlib.import_module(f"focus_bench.engine.kernels.{name}.sweep")
        rows += [{"op": name, **row} for row in module.run()]
    return rows


def _line(row: Mapping[str, float | str]) -> str:
    cells = [
        f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in row.items()
        if key not in {"op", "case"}
    ]
    return f"{row['op']:18} {row['case']:44} {'  '.join(cells)}  (us)"


def main() -> None:
    """Print the table; --json FILE keeps it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", nargs="*", help="folders; all of them by default")
    parser.add_argument("--sweep", action="store_true", help="time candidates for tunings")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    kind = "sweep" if arguments.sweep else "benchmark"
    allowed = operations(kind)
    for name in arguments.operations:
        if name not in allowed:
            parser.error(f"{name} has no {kind}; allowed: {', '.join(allowed)}")
    names = arguments.operations or allowed
    rows = sweep(names) if arguments.sweep else run(names)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
