"""Times kernels beside their alternatives: `python -m focus_bench.engine.kernels.benchmarking`.

Each operation's benchmark.py lists its cases; this file times them with device events and prints
the median beside the floor that the bytes moved and the arithmetic set.
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


def operations() -> list[str]:
    """Names of the folders that have a benchmark."""
    return sorted(p.parent.name for p in Path(__file__).parent.glob("*/benchmark.py"))


def median_us(function: Callable[[], object]) -> float:
    """Median microseconds of one call within a CUDA graph, so that launches do not count."""
    return 1e3 * float(triton.testing.do_bench_cudagraph(function, rep=20, return_mode="median"))


def run(names: list[str]) -> list[dict[str, float | str]]:
    """Time every case of the named operations; an alternative that fails is left out, by name."""
    rows: list[dict[str, float | str]] = []
    for name in names:
        module = importlib.import_module(f"focus_bench.engine.kernels.{name}.benchmark")
        for case in module.cases():
            row: dict[str, float | str] = {"op": name, "case": case.name, "floor": case.floor_us}
            for label, function in {"ours": case.ours, **case.others}.items():
                try:
                    row[label] = median_us(function)
                except Exception as error:  # an alternative may not support the shape or the GPU
                    row[label] = f"{type(error).__name__}: {error}".splitlines()[0][:80]
            rows.append(row)
            torch.cuda.empty_cache()
            print(_line(row), flush=True)
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
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    rows = run(arguments.operations or operations())
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
