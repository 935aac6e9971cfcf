"""Decode traces: fed, kept and decoded positions of every forward of every request, and its end.

A trace is what `replay:` acceptance reads. It holds masks and counts, never tokens or times.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from focus_bench.core.errors import UsageError
from focus_bench.decoding.block_state import BlockState, BoolArray, IntArray
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.masks import pack_masks

WordArray = npt.NDArray[np.uint64]
TRACE_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class DecodeTrace:
    """One row a (request, forward), sorted by request and forward; masks as 64-bit words.

    `request_id`, `forward` (0, 1, ... of that request, commit passes included), `fed`, `kept`,
    `decoded`: arrays [rows]. `ended_request`, `ended_output_tokens`, `ended_reason`: arrays over
    finished requests. `policy`, `block_length`, `alpha`, `threshold`: what it is valid for.
    """

    policy: str
    block_length: int
    alpha: float
    threshold: float
    request_id: IntArray
    forward: IntArray
    fed: WordArray
    kept: WordArray
    decoded: WordArray
    ended_request: IntArray
    ended_output_tokens: IntArray
    ended_reason: npt.NDArray[np.str_]

    def save(self, path: Path) -> None:
        """Write as a compressed numpy archive, under the very name given."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        with path.open("wb") as file:  # given a name, numpy would append .npz to it
            np.savez_compressed(file, schema_version=TRACE_SCHEMA_VERSION, **values)

    @classmethod
    def load(cls, path: Path) -> "DecodeTrace":
        """Read a trace; raises UsageError naming the file if it is missing or not a trace."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                if int(archive["schema_version"]) != TRACE_SCHEMA_VERSION:
                    raise UsageError(
                        f"decode trace {path} schema_version",
                        int(archive["schema_version"]),
                        str(TRACE_SCHEMA_VERSION),
                    )
                arrays = {f.name: archive[f.name] for f in dataclasses.fields(cls)}
                # Texts and numbers come back as arrays without dimensions.
                return cls(**{n: a if a.ndim else a.item() for n, a in arrays.items()})
        except UsageError:
            raise
        # A damaged archive raises anything from BadZipFile and zlib.error to NotImplementedError.
        except Exception as error:
            raise UsageError(
                "--acceptance replay", str(path), "a decode trace written by --decode-trace"
            ) from error


@dataclass(kw_only=True)
class TraceWriter:
    """Collects a trace step by step; `finish` sorts it."""

    policy: str
    block_length: int
    alpha: float
    threshold: float
    _steps: list[tuple[IntArray, IntArray, WordArray, WordArray, WordArray]] = field(
        default_factory=list
    )
    _ends: list[tuple[int, int, str]] = field(default_factory=list)

    def add_step(
        self, block: BlockState, feed: Feed, kept: BoolArray, decoded_now: BoolArray
    ) -> None:
        """One step's rows, from the block as it stood when the step began."""
        self._steps.append(
            (
                block.request_key.copy(),
                block.forwards.copy(),
                pack_masks(feed.positions),
                pack_masks(kept),
                pack_masks(decoded_now),
            )
        )

    def add_end(self, request_id: int, output_tokens: int, reason: str) -> None:
        """A request ended with that many output tokens."""
        self._ends.append((request_id, output_tokens, reason))

    def finish(self) -> DecodeTrace:
        """The trace so far."""

        def column(index: int, dtype: type) -> npt.NDArray[np.generic]:
            parts = [step[index] for step in self._steps]
            return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)

        request_id = column(0, np.int64)
        forward = column(1, np.int64)
        order = np.lexsort((forward, request_id))
        ends: Sequence[tuple[int, int, str]] = sorted(self._ends)
        return DecodeTrace(
            policy=self.policy,
            block_length=self.block_length,
            alpha=self.alpha,
            threshold=self.threshold,
            request_id=request_id[order].astype(np.int64),
            forward=forward[order].astype(np.int64),
            fed=column(2, np.uint64)[order].astype(np.uint64),
            kept=column(3, np.uint64)[order].astype(np.uint64),
            decoded=column(4, np.uint64)[order].astype(np.uint64),
            ended_request=np.array([e[0] for e in ends], dtype=np.int64),
            ended_output_tokens=np.array([e[1] for e in ends], dtype=np.int64),
            ended_reason=np.array([e[2] for e in ends], dtype=np.str_),
        )
