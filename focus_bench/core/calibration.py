"""Measured steps as files: what calibration passes from the engine to the simulator.

Knows how steps are summed up and written; neither how they were run nor what is fitted to them.
(Operations measured one by one, for profiles of GPUs, are in core/op_curves.py.)
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from focus_bench.core.costs import Phase, StepShape
from focus_bench.core.errors import UsageError, reason_of
from focus_bench.core.hardware import HARDWARE
from focus_bench.core.model_spec import ModelSpec

SAMPLES_SCHEMA_VERSION = 1
FloatArray = npt.NDArray[np.float64]

# Parts of a step that are timed apart; "host" is all time between two steps that no other has.
TIMED_PARTS = (*(phase.value for phase in Phase), "swap", "host")
# What a step's time depends on, of a model.
DIMENSIONS = (
    "num_layers",
    "hidden_size",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "dtype",
)


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """A step's shape, summed over its sequences: all that a time model may depend on.

    Prefill: tokens, chunks, blocks, query-key pairs of one layer, and keys (cached tokens read).
    Decode, over all forwards: `forwards`, `rows` (sequences), fed and kept positions, pairs and
    keys of layer 0 (`first_`) and of one later layer (`later_`), `head_rows`. Importance, of one
    layer: evicting sequences, their masked positions, the sum of squares of those, and how many
    different numbers of masked positions there are. `swapped_tokens`: tokens in swapped pages.
    """

    prefill_tokens: int
    prefill_chunks: int
    prefill_blocks: int
    prefill_pairs: int
    prefill_keys: int
    forwards: int
    rows: int
    fed: int
    kept: int
    first_pairs: int
    first_keys: int
    later_pairs: int
    later_keys: int
    head_rows: int
    evicting_rows: int
    importance_masked: int
    importance_pairs: int
    importance_groups: int
    swapped_tokens: int

    @classmethod
    def of(cls, shape: StepShape) -> "StepCounts":
        """Sum up a step."""
        prefill, forwards = shape.prefill, shape.forwards
        masked = [f.masked_fed[f.masked_fed > 0] for f in forwards]
        return cls(
            prefill_tokens=int(prefill.length.sum()),
            prefill_chunks=prefill.num_chunks,
            prefill_blocks=int(prefill.length.sum()) // prefill.block_length,
            prefill_pairs=prefill.query_key_pairs,
            prefill_keys=int((prefill.start + prefill.length).sum()),
            forwards=len(forwards),
            rows=sum(f.num_rows for f in forwards),
            fed=sum(int(f.fed.sum()) for f in forwards),
            kept=sum(int(f.kept.sum()) for f in forwards),
            first_pairs=sum(int((f.fed * f.first_keys).sum()) for f in forwards),
            first_keys=sum(int(f.first_keys.sum()) for f in forwards),
            later_pairs=sum(int((f.kept * f.later_keys).sum()) for f in forwards),
            later_keys=sum(int(f.later_keys.sum()) for f in forwards),
            head_rows=sum(f.head_rows for f in forwards),
            evicting_rows=sum(len(m) for m in masked),
            importance_masked=sum(int(m.sum()) for m in masked),
            importance_pairs=sum(int((m**2).sum()) for m in masked),
            importance_groups=sum(len(np.unique(m)) for m in masked),
            swapped_tokens=shape.swapped_pages * shape.page_size,
        )


COUNT_NAMES = tuple(field.name for field in dataclasses.fields(StepCounts))


@dataclass(frozen=True, kw_only=True)
class CalibrationSamples:
    """Measured steps of one model on one device.

    `counts[name]` int64 and `seconds[part]` float64 are arrays over steps, for every name of
    COUNT_NAMES and every part of TIMED_PARTS. `device` and `kind` ("cpu" or "gpu") name what was
    measured, `settings` its versions and threads, `dimensions` the model's shape.
    """

    device: str
    kind: str
    date: str
    settings: Mapping[str, str]
    model: str
    dimensions: Mapping[str, int | str]
    counts: Mapping[str, npt.NDArray[np.int64]]
    seconds: Mapping[str, FloatArray]

    @property
    def num_steps(self) -> int:
        """Measured steps."""
        return len(self.seconds["host"])

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(self.to_json()) + "\n", encoding="utf-8")

    def to_json(self) -> dict[str, object]:
        """Plain values, for this file and for the profile that is fitted to it."""
        return {
            "schema_version": SAMPLES_SCHEMA_VERSION,
            "device": self.device,
            "kind": self.kind,
            "date": self.date,
            "settings": dict(self.settings),
            "model": self.model,
            "dimensions": dict(self.dimensions),
            "counts": {name: self.counts[name].tolist() for name in COUNT_NAMES},
            "seconds": {
                part: [float(f"{value:.5g}") for value in self.seconds[part]]
                for part in TIMED_PARTS
            },
        }

    @classmethod
    def from_json(cls, value: object, *, source: str) -> "CalibrationSamples":
        """The inverse of `to_json`; raises UsageError naming `source` if it is not such a value."""
        try:
            assert isinstance(value, dict)
            if value["schema_version"] != SAMPLES_SCHEMA_VERSION:
                raise UsageError(
                    f"{source} schema_version",
                    value["schema_version"],
                    f"{SAMPLES_SCHEMA_VERSION} (calibrate again)",
                )
            counts = {n: np.array(value["counts"][n], dtype=np.int64) for n in COUNT_NAMES}
            seconds = {p: np.array(value["seconds"][p], dtype=np.float64) for p in TIMED_PARTS}
            assert len({a.shape for a in (*counts.values(), *seconds.values())}) == 1
            return cls(
                device=str(value["device"]),
                kind=str(value["kind"]),
                date=str(value["date"]),
                settings={str(k): str(v) for k, v in value["settings"].items()},
                model=str(value["model"]),
                dimensions={k: value["dimensions"][k] for k in DIMENSIONS},
                counts=counts,
                seconds=seconds,
            )
        except (
            AssertionError,
            AttributeError,
            KeyError,
            OverflowError,
            TypeError,
            ValueError,
        ) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(source, "unreadable", "samples written by calibrate") from error

    @classmethod
    def load(cls, path: Path) -> "CalibrationSamples":
        """Read what `save` wrote."""
        return cls.from_json(read_json(path), source=str(path))


def dimensions_of(spec: ModelSpec) -> dict[str, int | str]:
    """What a step's time depends on, of a model.

    With experts, `intermediate_size` is the mean over layers of what one token goes through.
    """
    dimensions = {name: getattr(spec, name) for name in DIMENSIONS}
    return dimensions | {"intermediate_size": spec.mean_token_width}


def check_applies(dimensions: Mapping[str, int | str], spec: ModelSpec, *, profile: str) -> None:
    """Raise UsageError where `spec` has experts and the `profile` was measured on another model.

    How long products of experts take depends on how many of them a step touches, which no dense
    model, and none with other experts, can tell.
    """
    if spec.experts is not None and dict(dimensions) != dimensions_of(spec):
        raise UsageError(
            "--gpu",
            profile,
            f"a data sheet ({', '.join(HARDWARE)}), or a profile measured on {spec.name} (it has "
            "experts)",
        )


def samples_of(
    steps: Sequence[tuple[StepCounts, Mapping[str, float]]],
) -> tuple[dict[str, npt.NDArray[np.int64]], dict[str, FloatArray]]:
    """`counts` and `seconds` of CalibrationSamples, from one entry a step."""
    counts = {
        name: np.array([getattr(count, name) for count, _ in steps], dtype=np.int64)
        for name in COUNT_NAMES
    }
    seconds = {
        part: np.array([timed[part] for _, timed in steps], dtype=np.float64)
        for part in TIMED_PARTS
    }
    return counts, seconds


def read_json(path: Path) -> object:
    """Parse a JSON file; raises UsageError naming it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_int=_whole_number)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError("file", str(path), f"a readable JSON file ({reason_of(error)})") from error


def _whole_number(text: str) -> float:
    """A JSON integer; infinity where no float holds it, as json has it for other numbers."""
    return int(text) if math.isfinite(float(text)) else float(text)
