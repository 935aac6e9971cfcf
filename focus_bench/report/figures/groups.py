"""Sorts results into panels and series: what shares a panel, and what names it.

Knows configurations and results, no figure. Results share a panel if they differ only in what the
panel's axes and series show.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from focus_bench.report.codec import to_plain
from focus_bench.report.compare import pair_results
from focus_bench.report.figures.theme import PolicySign, policy_order, policy_sign
from focus_bench.report.quality_results import reads_alpha, reads_retain
from focus_bench.report.results import PointResult

# What never separates panels: shown by series or axes, or how the weights and pages were had.
_SERIES_KEYS = ("decode.policy", "decode.alpha", "decode.retain", "decode.select")
_IGNORED = (
    *("importance.", "engine.load_format", "engine.device", "engine.dtype", "engine.threads"),
    *("engine.gpu_memory_utilization", "engine.mask_token_id", "engine.cuda_graphs"),
    *("scheduler.num_pages", "workload.dataset_path", "workload.download"),
)
# What tells panels apart, in this order, before any other setting.
_FIRST = ("engine.model", "workload.dataset", "hardware", "decode.block_length", "decode.threshold")
_NAMES = {
    "decode.block_length": "B",
    "engine.model": "",
    "workload.dataset": "",
    "hardware": "",
    "scheduler.batch_size": "batch",
    "acceptance.kind": "acceptance",
}
_VARIANT_MARKERS = "<p>h8"  # none of them is a policy's own
NUM_PROMPTS = "workload.num_prompts"
BATCH, BLOCK_LENGTH, ALPHA = "scheduler.batch_size", "decode.block_length", "decode.alpha"


@dataclass(frozen=True, kw_only=True)
class Plotted:
    """A result with what names it in figures.

    `settings`: the configuration as dotted names, hardware included; `series`: the policy with what
    tells its variants apart; `variant`: 0, 1, ... among the variants of a policy.
    """

    result: PointResult
    settings: dict[str, str]
    series: str
    variant: int
    sign: PolicySign

    @property
    def is_predicted(self) -> bool:
        """Whether it was not measured."""
        return self.result.source == "predicted"

    @property
    def policy(self) -> str:
        """The policy's full name."""
        return self.result.point.decode.policy

    @property
    def is_baseline(self) -> bool:
        """Whether it is what speed-ups are over."""
        return self.policy == "baseline"

    @property
    def is_bound(self) -> bool:
        """Whether it is what no engine reaches."""
        return self.policy == "ideal"

    @property
    def batch_size(self) -> int:
        """Requests in a batch."""
        return self.result.point.scheduler.batch_size

    @property
    def marker(self) -> str:
        """The policy's marker, or another one for a further variant of it."""
        if self.variant == 0:
            return self.sign.marker
        return _VARIANT_MARKERS[(self.variant - 1) % len(_VARIANT_MARKERS)]

    def value_of(self, setting: str) -> float:
        """The value of one of the settings that are numbers and can be an axis."""
        decode = self.result.point.decode
        return {BLOCK_LENGTH: float(decode.block_length), ALPHA: decode.alpha}[setting]

    def series_without(self, setting: str) -> str:
        """The series' name without the setting that an axis shows."""
        words = self.series.split()
        return " ".join(w for w in words if setting != ALPHA or not w.startswith("\u03b1"))


@dataclass(frozen=True, kw_only=True)
class Facet:
    """Results that share a panel, and its title ("" where there is only one)."""

    title: str
    members: tuple[Plotted, ...]


def plotted(results: Sequence[PointResult]) -> tuple[Plotted, ...]:
    """Every result once (the last of equal ones), policies in the order of figures.

    A prediction stands on the hardware that measured the same point, if one did.
    """
    hardware: dict[tuple[str, str, str], str] = {}
    home: dict[str, str] = {}
    kept: dict[tuple[str, str, str], PointResult] = {}
    for pair in pair_results(results):
        for result in pair.results:
            kept[result.key] = result
            hardware[result.key] = result.hardware
        if pair.measured is not None and pair.predicted is not None:
            home[pair.predicted.hardware] = pair.measured.hardware
    names = {key: home.get(name, name) for key, name in hardware.items()}
    variants: dict[str, list[str]] = {}
    found: list[Plotted] = []
    several = _several(list(kept.values()))
    for key, result in kept.items():
        policy = result.point.decode.policy
        series = " ".join([policy_sign(policy).short, *_variant(result, several)])
        known = variants.setdefault(policy, [])
        if series not in known:
            known.append(series)
        found.append(
            Plotted(
                result=result,
                settings=_settings(result, names[key]),
                series=series,
                variant=known.index(series),
                sign=policy_sign(policy),
            )
        )
    return tuple(sorted(found, key=lambda p: policy_order(p.policy)))


def facets(points: Sequence[Plotted], *free: str) -> tuple[Facet, ...]:
    """Groups of points that differ only in their series and in the settings named `free`.

    A number of requests that goes with the batch size separates nothing that the batch does not.
    """
    loose = (*free, NUM_PROMPTS) if BATCH in free and _goes_with_batch(points) else free
    groups: dict[tuple[tuple[str, str], ...], list[Plotted]] = {}
    for point in points:
        key = tuple((k, v) for k, v in point.settings.items() if k not in loose)
        groups.setdefault(key, []).append(point)
    keys = [dict(key) for key in groups]
    varying = _telling(keys)
    named = [
        Facet(
            title=", ".join(_named(name, key[name]) for name in varying if key.get(name, "") != ""),
            members=tuple(group),
        )
        for key, group in zip(keys, groups.values(), strict=True)
    ]
    return tuple(sorted(named, key=lambda facet: _natural(facet.title)))


def _goes_with_batch(points: Sequence[Plotted]) -> bool:
    counts: dict[str, set[str]] = {}
    for point in points:
        counts.setdefault(point.settings[BATCH], set()).add(point.settings[NUM_PROMPTS])
    return all(len(of_batch) == 1 for of_batch in counts.values())


def _telling(keys: Sequence[dict[str, str]]) -> list[str]:
    """Few settings by which all keys differ: those that readers ask for first, and no more."""
    names = dict.fromkeys((*_FIRST, *(name for key in keys for name in key)))
    told: list[str] = []
    seen = 1
    for name in names:
        distinct = len({tuple(key.get(n, "") for n in (*told, name)) for key in keys})
        if distinct > seen:
            told, seen = [*told, name], distinct
    return told


def one_batch(members: Sequence[Plotted]) -> tuple[Plotted, ...]:
    """Those of the batch size with most of them, the larger one of two."""
    counts = Counter(p.batch_size for p in members)
    chosen = max(counts, key=lambda batch: (counts[batch], batch), default=0)
    return tuple(p for p in members if p.batch_size == chosen)


def series_of(members: Sequence[Plotted]) -> dict[tuple[str, str], list[Plotted]]:
    """Points by (series, source), each group by batch."""
    groups: dict[tuple[str, str], list[Plotted]] = {}
    for point in sorted(members, key=lambda p: (p.is_predicted, p.batch_size)):
        groups.setdefault((point.series, point.result.source), []).append(point)
    return groups


def joined(*parts: str) -> str:
    """A title of those parts that are not empty."""
    return ", ".join(part for part in parts if part)


def _several(results: Sequence[PointResult]) -> tuple[bool, bool, bool]:
    decodes = [r.point.decode for r in results]
    return (
        len({d.alpha for d in decodes if reads_alpha(d.policy)}) > 1,
        len({d.retain for d in decodes if reads_retain(d.policy)}) > 1,
        len({d.select for d in decodes if reads_retain(d.policy)}) > 1,
    )


def _variant(result: PointResult, several: tuple[bool, bool, bool]) -> list[str]:
    decode = result.point.decode
    alphas, retains, selects = several
    parts = []
    if alphas and reads_alpha(decode.policy):
        parts.append(f"\u03b1{decode.alpha:g}")
    if reads_retain(decode.policy):
        parts += [f"K{decode.retain}"] if retains else []
        parts += [decode.select] if selects else []
    return parts


def _settings(result: PointResult, hardware: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    _flatten("", to_plain(result.point), flat)
    if flat["acceptance.preset"]:
        del flat["acceptance.mean"], flat["acceptance.scatter"]  # the preset says it all
    kept = {
        name: value
        for name, value in flat.items()
        if name not in _SERIES_KEYS and not name.startswith(_IGNORED)
    }
    return {**kept, "hardware": hardware}


def _flatten(prefix: str, value: object, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _flatten(f"{prefix}.{name}" if prefix else name, item, into)
    else:
        into[prefix] = f"{value:g}" if isinstance(value, float) else str(value)


def _named(name: str, value: str) -> str:
    shown = _NAMES.get(name, name.rpartition(".")[2].replace("_", " "))
    return f"{shown} {value}".strip()


def _natural(title: str) -> list[tuple[int, float, str]]:
    # "B 16" before "B 128".
    words = title.replace(",", " ").split()
    return [(0, float(w), "") if w.replace(".", "", 1).isdigit() else (1, 0.0, w) for w in words]
