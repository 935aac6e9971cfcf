"""Decode dynamics fitted on traces: how many positions a step decodes, and how far from the left.

A small table that stands for a model where there is none. Knows no model and no scheduler.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from focus_bench.core.errors import UsageError, check_range
from focus_bench.core.model_folder import checkpoint_folder, read_json_object
from focus_bench.core.rng import gumbel, stream_key, uniform
from focus_bench.decoding.block_state import BoolArray, IntArray
from focus_bench.decoding.masks import count_true, unpack_masks
from focus_bench.decoding.ranking import largest
from focus_bench.decoding.trace import DecodeTrace

DYNAMICS_FILE = "decode_dynamics.json"  # in the folder of a bundled model
DYNAMICS_SCHEMA_VERSION = 1
_MAX_SCATTER = 64.0
_FIT_STEPS = 30  # halvings of (0, 64]: far below what the traces can tell apart


@dataclass(frozen=True, kw_only=True)
class DecodeDynamics:
    """How the blocks of some traces were decoded.

    `steps[m, n]`, shape [B + 1, B + 1]: decode steps that began with m masked positions in the
    block and decoded n of them; row 0 and column 0 are empty, every other row holds something.
    `scatter`: the s for which the n best of (-rank + s * Gumbel noise) lie as far from the n
    leftmost as the positions decoded in the traces. `threshold`: that of the traces.
    `importance_noise`: that of synthetic importance at its default tau for which FOCUS, at alpha
    1.5, processes as much per decoded position as the model's own does; None: not fitted.
    """

    block_length: int
    threshold: float
    scatter: float
    steps: IntArray
    importance_noise: float | None = None

    def __post_init__(self) -> None:
        size = self.block_length + 1
        table = self.steps
        if table.shape != (size, size) or (table < 0).any():
            raise UsageError("dynamics steps", table.shape, f"counts from 0, [{size}, {size}]")
        impossible = np.triu(np.ones_like(table, dtype=bool), 1)  # more decoded than masked
        impossible[:, 0] = impossible[0] = True
        if table[impossible].any() or not table[1:].any(axis=1).all():
            raise UsageError(
                "dynamics steps",
                "a row that is empty or decodes none or too many",
                f"1 to m decoded positions for every m from 1 to {self.block_length}",
            )
        check_range("dynamics scatter", self.scatter, low=0.0, high=_MAX_SCATTER)
        if self.importance_noise is not None:
            check_range("dynamics importance_noise", self.importance_noise, low=0.0)

    @property
    def mean(self) -> float:
        """Positions decoded per decode step."""
        return float((self.steps.sum(axis=0) @ np.arange(len(self.steps))) / self.steps.sum())

    def counts(self, seed: int, request: IntArray, step: IntArray, masked: IntArray) -> IntArray:
        """Positions that each (request, step) decodes, given how many are masked in its block.

        By inversion of the same 53-bit uniform that the Poisson counts take. Blocks with more
        masked positions than the traces' blocks had draw from the traces' full ones.
        """
        u = uniform(stream_key(seed, "acceptance-count"), request, step)
        row = np.minimum(masked, self.block_length)
        return 1 + count_true(u[:, None] >= self._share_up_to[row])

    @cached_property
    def _share_up_to(self) -> npt.NDArray[np.float64]:
        """Entry [m, n - 1]: share of the steps at m masked positions that decoded at most n."""
        total = np.maximum(self.steps.sum(axis=1), 1)
        return np.asarray(np.cumsum(self.steps[:, 1:], axis=1) / total[:, None])

    def expected_steps(self, masked: int) -> float:
        """Mean decode steps of a block that begins with `masked` masked positions, exactly."""
        size = len(self.steps)
        share = self.steps / np.maximum(self.steps.sum(axis=1), 1)[:, None]
        expected = np.zeros(size)
        for m in range(1, masked + 1):
            left = m - np.arange(1, m + 1)
            expected[m] = 1.0 + float(share[m, 1 : m + 1] @ expected[left])
        return float(expected[masked])

    def save(self, path: Path, *, provenance: dict[str, Any]) -> None:
        """Write as JSON, with lines on what it was fitted on."""
        record = {
            "schema_version": DYNAMICS_SCHEMA_VERSION,
            "provenance": provenance,
            "block_length": self.block_length,
            "threshold": self.threshold,
            "scatter": self.scatter,
            "importance_noise": self.importance_noise,
            "steps": [[int(count) for count in row] for row in self.steps],
        }
        text = json.dumps(record, indent=1)
        path.write_text(_rows_on_a_line(text) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "DecodeDynamics":
        """Read what `save` wrote; raises UsageError naming the file."""
        record = read_json_object(path)
        try:
            version = record["schema_version"]
            noise = record["importance_noise"]
            dynamics = cls(
                block_length=int(record["block_length"]),
                threshold=float(record["threshold"]),
                scatter=float(record["scatter"]),
                steps=np.array(record["steps"], dtype=np.int64),
                importance_noise=None if noise is None else float(noise),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError("decode dynamics", str(path), f"a file of them ({error})") from None
        if version != DYNAMICS_SCHEMA_VERSION:
            raise UsageError(f"{path} schema_version", version, str(DYNAMICS_SCHEMA_VERSION))
        return dynamics


def dynamics_of_model(name: str) -> DecodeDynamics:
    """The dynamics that come with a bundled model."""
    return DecodeDynamics.load(checkpoint_folder(name) / DYNAMICS_FILE)


@dataclass(frozen=True, kw_only=True)
class WholeBlocks:
    """The decode steps of a trace's closed blocks.

    `masked[k]`, `decoded[k]`: positions masked before step k and decoded in it; `candidates[k]`
    and `chosen[k]` [steps, B] the same as masks. `steps_per_block`: decode steps of each block.
    """

    masked: IntArray
    decoded: IntArray
    candidates: BoolArray
    chosen: BoolArray
    steps_per_block: IntArray


def whole_blocks(trace: DecodeTrace) -> WholeBlocks:
    """The steps of every block that ended with its commit pass, which decodes nothing.

    A request's last block has none: it ends with its request, and behind the end of a reply a
    model decodes as many stop tokens as there is room for, which says nothing of its text.
    """
    chosen = unpack_masks(trace.decoded, trace.block_length)
    decodes = np.asarray(chosen.any(axis=1))
    begins = np.diff(trace.request_id, prepend=-1) != 0
    begins[1:] |= ~decodes[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(decodes))
    closed = (ends > starts + 1) & ~decodes[ends - 1]
    lengths = (ends - starts - 1)[closed]
    rows = [np.arange(a, b - 1) for a, b in zip(starts[closed], ends[closed], strict=True)]
    steps = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    candidates = np.zeros_like(chosen)
    for block in rows:  # what is masked before a step is what this step and later ones decode
        later = np.logical_or.accumulate(chosen[block][::-1], axis=0)[::-1]
        candidates[block] = later
    return WholeBlocks(
        masked=candidates[steps].sum(axis=1),
        decoded=chosen[steps].sum(axis=1),
        candidates=candidates[steps],
        chosen=chosen[steps],
        steps_per_block=lengths,
    )


def fit_dynamics(trace: DecodeTrace) -> DecodeDynamics:
    """Count the steps of the closed blocks of a baseline trace, and find the scatter.

    Numbers of masked positions that never occurred take the row of the next larger one that did,
    their counts cut at what is there. Raises UsageError for a trace of an evicting policy or one
    without a whole block of B masked positions.
    """
    if trace.policy != "baseline":
        raise UsageError("trace policy", trace.policy, "baseline, which evicts nothing")
    length = trace.block_length
    blocks = whole_blocks(trace)
    table = np.zeros((length + 1, length + 1), dtype=np.int64)
    np.add.at(table, (blocks.masked, blocks.decoded), 1)
    if not table[length].any():
        raise UsageError("trace", f"{len(blocks.steps_per_block)} whole blocks", "full blocks")
    for m in range(length - 1, 0, -1):
        if not table[m].any():
            np.add.at(table[m], np.minimum(np.arange(length + 1), m), table[m + 1])
    return DecodeDynamics(
        block_length=length,
        threshold=trace.threshold,
        scatter=fit_scatter(blocks),
        steps=table,
    )


def fit_scatter(blocks: WholeBlocks) -> float:
    """The scatter s at which the same steps, their n positions drawn as the n best of
    (-rank + s * Gumbel noise), lie as far from the n leftmost on average as in the trace.

    By bisection on fixed noise; 0 where the trace decodes left to right.
    """
    target = mean_excess_rank(blocks.candidates, blocks.chosen)
    index = np.arange(len(blocks.masked))[:, None]
    noise = gumbel(stream_key(0, "fit-scatter"), index, np.arange(blocks.candidates.shape[1]))

    def drawn(scatter: float) -> float:
        chosen = scattered(blocks.candidates, blocks.decoded, scatter * noise)
        return mean_excess_rank(blocks.candidates, chosen)

    low, high = 0.0, _MAX_SCATTER
    if target <= 0.0:
        return 0.0
    for _ in range(_FIT_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if drawn(middle) < target else (low, middle)
    return round((low + high) / 2, 3)


def mean_excess_rank(candidates: BoolArray, chosen: BoolArray) -> float:
    """How far the chosen positions lie from the leftmost, in ranks per chosen position.

    Ranks count the candidates of each row [n, B] from the left; 0 means left to right.
    """
    rank = np.cumsum(candidates, axis=1) - 1
    count = chosen.sum(axis=1)
    excess = np.where(chosen, rank, 0).sum() - (count * (count - 1) // 2).sum()
    return float(excess / max(1, count.sum()))


def scattered(candidates: BoolArray, count: IntArray, noise: npt.NDArray[np.float64]) -> BoolArray:
    """The `count[n]` candidates [n, B] of each row with the largest -rank + `noise[n, B]`.

    All of them where there are fewer; ties go to the lower position.
    """
    rank = np.cumsum(candidates, axis=1, dtype=np.int8) - 1
    return largest(noise - rank, candidates, count)


def _rows_on_a_line(text: str) -> str:
    """Innermost lists of numbers, one a line instead of one number a line."""
    head, mark, table = text.partition('"steps": [')
    rows = table.replace("\n   ", "").replace("\n  ]", "]")
    return head + mark + rows
