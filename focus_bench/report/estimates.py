"""What a point of a dry run will probably take: columns for its table, and what they rest on.

Knows figures, not how they were estimated; one that is unknown is shown as "-".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from focus_bench.report import formats
from focus_bench.report.layout import Column, column

FITS, FEWER_PAGES, DOES_NOT_FIT = "yes", "fewer pages", "no"


@dataclass(frozen=True, kw_only=True)
class PointEstimate:
    """Time and memory that a point is predicted to take; None: unknown.

    `seconds`: of serving the requests, as often as it will be done; `is_whole` False: the first
    steps were predicted and the rest follows from them. `weight_bytes`; `kv_pages` and `kv_bytes`:
    what the requests can hold at most at once, or --num-pages; `activation_bytes`: an upper bound
    of what a step makes besides. `fits`: FITS, FEWER_PAGES (requests will wait or be preempted) or
    DOES_NOT_FIT; "" where the device's memory is unknown.
    """

    seconds: float | None = None
    is_whole: bool = True
    weight_bytes: int | None = None
    kv_pages: int | None = None
    kv_bytes: int | None = None
    activation_bytes: int | None = None
    fits: str = ""

    @property
    def total_bytes(self) -> int | None:
        """Weights, pages and activations; None if one of them is unknown."""
        parts = (self.weight_bytes, self.kv_bytes, self.activation_bytes)
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None


def estimate_columns(estimates: Sequence[PointEstimate]) -> list[Column]:
    """Time and memory of each point, marked as predicted."""
    columns = [
        column("pred.\ntime", estimates, _time),
        column("pred.\nmemory", estimates, lambda e: formats.byte_size(e.total_bytes)),
    ]
    if any(estimate.fits for estimate in estimates):
        columns.append(column("fits", estimates, lambda e: e.fits or formats.UNDEFINED))
    return [
        *columns,
        column("weights", estimates, lambda e: formats.byte_size(e.weight_bytes)),
        column("KV\nmemory", estimates, lambda e: formats.byte_size(e.kv_bytes)),
        column("KV\npages", estimates, lambda e: formats.number(e.kv_pages)),
        column("activ.\nat most", estimates, lambda e: formats.byte_size(e.activation_bytes)),
    ]


def total_time(estimates: Sequence[PointEstimate]) -> str:
    """One line: the sum of the times that are known."""
    known = [e.seconds for e in estimates if e.seconds is not None]
    if not known:
        return ""
    mark = "" if all(e.is_whole for e in estimates) else formats.FEW
    left_out = len(estimates) - len(known)
    rest = f", without {left_out} unknown" if left_out else ""
    return f"predicted time in all: {mark}{formats.seconds(sum(known))}{rest}"


def _time(estimate: PointEstimate) -> str:
    if estimate.seconds is None:
        return formats.UNDEFINED
    return ("" if estimate.is_whole else formats.FEW) + formats.seconds(estimate.seconds)
