"""At which points each operation is measured on a GPU; knows sizes, and nothing of how.

The first pass over a plan is coarse, so that a calibration that runs out of time has every curve.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from focus_bench.core.curve_samples import Point
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.op_curves import BLOCK_LENGTH, CURVES, curves_of_model

MAX_ROWS = 8192
# Products: every tile of 64 or 128 rows, then every second and fourth.
PRODUCT_ROWS = (
    *(1, 8, 16, 32, 48, 64),
    *range(128, 1024 + 1, 64),
    *range(1152, 2048 + 1, 128),
    *range(2304, MAX_ROWS + 1, 256),
)
# How many experts are read, and so their time, changes most between few rows.
EXPERT_ROWS = (1, 2, 4, *PRODUCT_ROWS[1:])
LIGHT_ROWS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, MAX_ROWS)
SUSTAINED_ROWS = (64, 128, 256, 512, 1024, 2048, 4096, MAX_ROWS)
HEAD_ROWS = (
    *(1, 8, 16, 32, 48, 64),
    *range(128, 512 + 1, 64),
    *range(640, 1024 + 1, 128),
    *range(1280, 2048 + 1, 256),
    *range(2560, 4096 + 1, 512),
    *(5120, 6144, 7168, MAX_ROWS),
)
SEQUENCES = (1, 4, 8, 12, 16, 32, 64, 128, 256)
QUERIES = (1, 4, 8, 12, 16, 24, BLOCK_LENGTH, 2 * BLOCK_LENGTH)
CONTEXTS = (64, 256, 640, 1024, 2048, 4096, 8192)
MASKED = (1, 4, 8, 16, 24, BLOCK_LENGTH)
# The work of a prompt grows with its square: lines between points far apart would be above it.
PREFILL_QUERIES = (
    *(32, 64, 128, 192, 256, 384, 512, 768),
    *(1024, 1536, 2048, 3072, 4096, 6144, MAX_ROWS),
)


# What steps are made of comes before what explains it (products one by one, ragged attention).
_FIRST = frozenset(
    {
        *("project", "finish", "dense_finish", "experts"),
        *("head", "attention_decode", "attention_prefill"),
    }
)
_WITH_EXPERTS = ("finish", "experts")
# Tokens of the cache that all points together need.
CACHE_TOKENS = max(SEQUENCES) * (max(CONTEXTS) + 64)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the device and the model allow: tokens of the cache in all, of one sequence, of a page,
    and of one call (`rows`).
    """

    cache_tokens: int
    sequence_tokens: int
    page_size: int
    rows: int = MAX_ROWS


@dataclass(frozen=True, kw_only=True)
class PlannedPoint:
    """A point of a curve; `coarse` ones are measured before all others."""

    curve: str
    point: Point
    coarse: bool


def planned_points(limits: Limits, experts: ExpertSpec | None = None) -> list[PlannedPoint]:
    """All points within the limits of the curves of a model: first the coarse ones of every curve,
    then the others, those of the curves that predictions need most before the rest.
    """
    planned = []
    for curve in curves_of_model(experts):
        axes = _axes(curve, limits.page_size)
        if experts is not None and curve in _WITH_EXPERTS:
            axes = (EXPERT_ROWS,)
        points = [point for point in _points(curve, axes) if _fits(curve, point, limits)]
        coarse = _coarse(points)
        planned += [PlannedPoint(curve=curve, point=p, coarse=p in coarse) for p in points]
    return sorted(planned, key=lambda point: (not point.coarse, point.curve not in _FIRST))


def _points(curve: str, axes: tuple[Sequence[int], ...]) -> Iterator[Point]:
    for point in product(*axes):
        if curve == "compaction" and point[2] > point[1]:
            continue
        if curve == "attention_prefill" and point[0] * point[1] > MAX_ROWS:
            continue
        yield point


def _axes(curve: str, page_size: int) -> tuple[Sequence[int], ...]:
    """The values of each axis; none for curves that come from real steps."""
    match curve:
        case "qkv" | "o" | "gate_up" | "down" | "project" | "finish" | "dense_finish" | "experts":
            return (PRODUCT_ROWS,)
        case "rms_norm" | "qk_norm_rope" | "silu_mul" | "embed_rope" | "route":
            return (LIGHT_ROWS,)
        case "layer_sustained":
            return (SUSTAINED_ROWS,)
        case "head":
            return (HEAD_ROWS,)
        case "attention_decode":
            return SEQUENCES, QUERIES, CONTEXTS
        case "attention_ragged":  # up to 1.8 times the mean
            return (16, 64, 256), (5, 10, 16), (320, 640, 2048)
        case "attention_longest":
            return SEQUENCES[1:], (512, 1024, 2048, 4096, 8192)
        case "attention_prefill":
            return (1, 2, 4, 8, 16), PREFILL_QUERIES, (0, 1024, 8192)
        case "importance":
            return SEQUENCES, MASKED
        case "selection":
            return (SEQUENCES,)
        case "compaction":
            return (1, 16, 64, 256), (4, 8, 16, 24, BLOCK_LENGTH), (2, 4, 8, 16, 24, BLOCK_LENGTH)
        case "swap_out" | "swap_in":
            return (tuple(pages * page_size for pages in (1, 4, 16, 64)),)
        case "launch_prefill":
            return ((BLOCK_LENGTH, 64, 256, 1024),)
        case "launch_first" | "launch_later" | "replay_first" | "replay_later":
            return ((1, 32, 64, 256, 1024),)
        case "launch_head":
            return ((1, 32, 256, 1024),)
        case "launch_eviction" | "host_readback":
            return ((1, 32, 256),)
        case _:
            return ((),)


def _fits(curve: str, point: Point, limits: Limits) -> bool:
    at = dict(zip(CURVES[curve].axes, point, strict=True))
    length = at.get("context", at.get("history", 0) + at.get("queries", 0))
    longest = 2 * length if curve == "attention_ragged" else length
    per_sequence = at.get("context", length) + limits.page_size  # the last page is not full
    tokens = at.get("sequences", 1) * per_sequence
    per_call = at.get("queries", at.get("fed", at.get("masked", 1)))
    rows = max(at.get("rows", 0), at.get("tokens", 0), at.get("sequences", 0) * per_call)
    return (
        longest <= limits.sequence_tokens and tokens <= limits.cache_tokens and rows <= limits.rows
    )


def _coarse(points: Sequence[Point]) -> set[Point]:
    """Those with every second value, and the first and the last, on every axis."""
    chosen = []
    for values in zip(*points, strict=True):
        distinct = sorted(set(values))
        chosen.append({*distinct[::2], distinct[-1]})
    return {p for p in points if all(v in c for v, c in zip(p, chosen, strict=True))}
