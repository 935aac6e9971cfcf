"""Where over a sweep of batch sizes a policy pays and the baseline becomes compute-bound.

Takes predicted (or measured) results and where they stand in a roofline; renders and writes nothing
itself but tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.report import formats
from focus_bench.report.captions import plain_lines
from focus_bench.report.compare import Comparison, pair_results, speedups
from focus_bench.report.export import Cell, csv_text
from focus_bench.report.figures.groups import BATCH, Facet, Plotted, facets, series_of
from focus_bench.report.figures.records import Key
from focus_bench.report.figures.roofline import Place, ridge_of, sheet_of
from focus_bench.report.figures.theme import policy_sign
from focus_bench.report.layout import Column, FittedTable, column
from focus_bench.report.results import PointResult
from focus_bench.report.tables import name_columns

PAYS_BEYOND = 1.02  # times the baseline's throughput


@dataclass(frozen=True, kw_only=True)
class PolicySweep:
    """One series over batch sizes: `throughput[batch]` in tokens/s, and its name in figures.

    `pays_from`: the first batch from which on it is more than 2 % above the baseline, at every
    batch that both have; None: at the largest one it is not.
    """

    name: str
    policy: str
    throughput: Mapping[int, float]
    keys: Mapping[int, Key]
    pays_from: int | None = None


@dataclass(frozen=True, kw_only=True)
class BatchSweep:
    """The series of one setting on one piece of hardware over batch sizes.

    `ridge`: FLOP per byte at which the data sheet's limits meet; None without one. `places[batch]`:
    the baseline in the roofline. `compute_bound_from`: the first batch from which on the baseline's
    intensity is at or beyond the ridge; None: nowhere, or not known.
    """

    title: str
    hardware: str
    batches: tuple[int, ...]
    baseline: PolicySweep
    others: tuple[PolicySweep, ...]
    places: Mapping[int, Place]
    ridge: float | None
    roof: Mapping[int, float]
    compute_bound_from: int | None

    @property
    def marks(self) -> dict[Key, str]:
        """Words beside single points of the roofline."""
        words = {}
        if self.compute_bound_from is not None:
            key = self.baseline.keys[self.compute_bound_from]
            words[key] = f"batch {self.compute_bound_from}: compute-bound"
        for other in self.others:
            if other.policy != "ideal" and other.pays_from is not None:
                words[other.keys[other.pays_from]] = f"batch {other.pays_from}: pays"
        return words


def batch_sweeps(points: Sequence[Plotted], placed: Mapping[Key, Place]) -> tuple[BatchSweep, ...]:
    """One sweep for each setting that has a baseline; `placed`: from `figures.roofline.places`."""
    found = []
    for facet in facets(points, BATCH):
        sweep = _sweep(facet, placed)
        if sweep is not None:
            found.append(sweep)
    return tuple(found)


def _sweep(facet: Facet, placed: Mapping[Key, Place]) -> BatchSweep | None:
    series = [_policy_sweep(name, group) for (name, _), group in series_of(facet.members).items()]
    baseline = next((s for s in series if s.policy == "baseline"), None)
    if baseline is None:
        return None
    others = tuple(
        PolicySweep(
            name=s.name,
            policy=s.policy,
            throughput=s.throughput,
            keys=s.keys,
            pays_from=_first_from(
                {
                    batch: value > PAYS_BEYOND * baseline.throughput[batch]
                    for batch, value in s.throughput.items()
                    if batch in baseline.throughput
                }
            ),
        )
        for s in series
        if s.policy != "baseline"
    )
    sheet = sheet_of(facet.members[0])
    ridge = None if sheet is None else ridge_of(sheet)
    places = {batch: placed[key] for batch, key in baseline.keys.items() if key in placed}
    is_bound = {b: ridge is not None and place.intensity >= ridge for b, place in places.items()}
    roof = {}
    if sheet is not None:
        for batch, place in places.items():
            memory = place.intensity * sheet.memory_bandwidth
            roof[batch] = min(memory, sheet.dense_16bit_flops)
    return BatchSweep(
        title=facet.title,
        hardware=facet.members[0].settings["hardware"],
        batches=tuple(sorted({b for s in series for b in s.throughput})),
        baseline=baseline,
        others=others,
        places=places,
        ridge=ridge,
        roof=roof,
        compute_bound_from=_first_from(is_bound),
    )


def _policy_sweep(name: str, group: Sequence[Plotted]) -> PolicySweep:
    known = [p for p in group if p.result.metrics.output_throughput is not None]
    return PolicySweep(
        name=name,
        policy=group[0].policy,
        throughput={p.batch_size: p.result.metrics.output_throughput or 0.0 for p in known},
        keys={p.batch_size: p.result.key for p in known},
    )


def _first_from(holds: Mapping[int, bool]) -> int | None:
    """The first batch from which on something holds at every batch."""
    lasting = list(takewhile(lambda batch: holds[batch], sorted(holds, reverse=True)))
    return lasting[-1] if lasting else None


def what_if_table(sweep: BatchSweep) -> RenderableType:
    """Both marks in words, then one row a batch."""
    batches = sweep.batches
    columns = [
        column("batch", batches, str, is_name=True),
        column("mark", batches, lambda b: _mark(sweep, b), is_name=True),
        column("baseline\ntok/s", batches, lambda b: formats.number(_at(sweep.baseline, b))),
    ]
    for other in sweep.others:
        columns += _policy_columns(sweep, other)
    if sweep.places:
        columns += [
            column("baseline\nFLOP/B", batches, lambda b: formats.number(_intensity(sweep, b))),
            column("of its\nroof", batches, lambda b: formats.share(_of_roof(sweep, b))),
        ]
    return Group(
        *(Text(line) for line in _lines(sweep)), Text(), FittedTable(columns=tuple(columns))
    )


def _policy_columns(sweep: BatchSweep, other: PolicySweep) -> list[Column]:
    return [
        column(f"{other.name}\ntok/s", sweep.batches, lambda b: formats.number(_at(other, b))),
        column("x\nbase", sweep.batches, lambda b: formats.factor(_speedup(sweep, other, b))),
    ]


def _lines(sweep: BatchSweep) -> list[str]:
    lines = [f"what if: {sweep.title or sweep.hardware}"]
    smallest, largest = sweep.batches[0], sweep.batches[-1]
    for other in sweep.others:
        if other.policy == "ideal":
            lines.append(
                "ideal: keeps what the step decodes and no more: the bound on any predictor"
            )
        elif other.pays_from is None:
            lines.append(f"{other.name} pays at no batch up to {largest}")
        else:
            already = ", the smallest here" if other.pays_from == smallest else ""
            lines.append(f"{other.name} pays from batch {other.pays_from} on{already}")
    if any(other.policy != "ideal" for other in sweep.others):
        lines.append(
            f"pays: output throughput more than {100 * (PAYS_BEYOND - 1):.0f} % above the "
            "baseline's, there and at every larger batch here"
        )
    if sweep.ridge is None or not sweep.places:
        lines.append("no roofline: no data sheet of the hardware, or no steps.csv")
    elif sweep.compute_bound_from is None:
        lines.append(
            f"baseline stays memory-bound to batch {largest} (below the data sheet's ridge of "
            f"{sweep.ridge:.0f} FLOP/B)"
        )
    else:
        lines.append(
            f"baseline is compute-bound from batch {sweep.compute_bound_from} on (at or beyond the "
            f"data sheet's ridge of {sweep.ridge:.0f} FLOP/B)"
        )
    return lines


def _mark(sweep: BatchSweep, batch: int) -> str:
    words = [f"{s.name} pays" for s in sweep.others if s.pays_from == batch and s.policy != "ideal"]
    if batch == sweep.compute_bound_from:
        words.append("compute-bound")
    return ", ".join(words)


def _at(series: PolicySweep, batch: int) -> float | None:
    return series.throughput.get(batch)


def _speedup(sweep: BatchSweep, other: PolicySweep, batch: int) -> float | None:
    own, base = _at(other, batch), _at(sweep.baseline, batch)
    return own / base if own is not None and base else None


def _intensity(sweep: BatchSweep, batch: int) -> float | None:
    place = sweep.places.get(batch)
    return None if place is None else place.intensity


def _of_roof(sweep: BatchSweep, batch: int) -> float | None:
    place, roof = sweep.places.get(batch), sweep.roof.get(batch)
    return None if place is None or roof is None else place.rate / roof


def what_if_csv(sweeps: Sequence[BatchSweep]) -> str:
    """One tidy row for each batch and series."""
    header = (
        *("setting", "hardware", "series", "policy", "batch_size", "output_throughput", "speedup"),
        *("pays_from_batch", "baseline_flop_per_byte", "ridge_flop_per_byte"),
        *("baseline_flop_per_s", "baseline_compute_bound_from_batch", "point_hash", "source"),
    )
    rows: list[list[Cell]] = []
    for sweep in sweeps:
        for series in (sweep.baseline, *sweep.others):
            for batch, throughput in series.throughput.items():
                place = sweep.places.get(batch)
                rows.append(
                    [
                        *(sweep.title, sweep.hardware, series.name, series.policy, batch),
                        *(throughput, _speedup(sweep, series, batch), series.pays_from),
                        *(_intensity(sweep, batch), sweep.ridge),
                        *(None if place is None else place.rate, sweep.compute_bound_from),
                        *series.keys[batch][:2],
                    ]
                )
    return csv_text(header, rows)


def basis(results: Sequence[PointResult]) -> RenderableType:
    """What all results rest on, each line once, for tables whose rows carry no numbers of notes."""
    return Group(*(Text(line, style="yellow") for line in plain_lines(pair_results(results))))


def hardware_table(results: Sequence[PointResult]) -> RenderableType | None:
    """Every predicted point with its throughput on each piece of hardware side by side, and its
    speed-up over the baseline there; None where there is one piece only.
    """
    predicted = [r for pair in pair_results(results) if (r := pair.predicted) is not None]
    names = list(dict.fromkeys(r.hardware for r in predicted))
    if len(names) < 2:
        return None
    faster = speedups(predicted)
    found: dict[str, dict[str, PointResult]] = {}
    for result in predicted:
        found.setdefault(result.point_hash, {})[result.hardware] = result
    rows = list(found.values())
    alone = [
        Comparison(point=next(iter(row.values())).point, measured=None, predicted=None)
        for row in rows
    ]
    short = [policy_sign(pair.point.decode.policy).short for pair in alone]
    columns = [
        Column(heading="policy", cells=tuple(short), is_name=True),
        *name_columns(alone, ("",) * len(alone))[1:],
    ]
    for name in names:
        columns.append(
            column(
                name.replace("-", "\n", 1) + "\ntok/s",  # narrow, so that four fit side by side
                rows,
                lambda row, name=name: formats.number(
                    row[name].metrics.output_throughput if name in row else None
                ),
            )
        )
        columns.append(
            column(
                "x\nbase",
                rows,
                lambda row, name=name: formats.factor(
                    faster[row[name].key] if name in row else None
                ),
            )
        )
    return Group(Text("predictions side by side"), Text(), FittedTable(columns=tuple(columns)))
