"""What decode steps without eviction show of each masked position: its importance in every layer,
whether the step decoded it, and whether FOCUS would have kept it. Knows no model and no statistics.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from focus_bench.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DecodabilityRecords:
    """Arrays over n masked fed positions, in order of step, row and position.

    A row is one decode step of one sequence: its positions are `row_starts[r]` to
    `row_starts[r + 1]`, int64 [rows + 1]. `importance[n, layers]` float32: Eq. 2 in each layer,
    which sums to heads * M over a row of M positions. `decoded[n]`: the step decoded it (at or
    above the threshold, or the row's most confident one where none was); `confidence[n]` float32;
    `position[n]` in the block. `kept[n, alphas]`: what FOCUS's whole rule (budget, constraints,
    progress) would have kept of this very step with each of `alphas`.
    """

    num_heads: int
    block_length: int
    threshold: float
    alphas: tuple[float, ...]
    row_starts: npt.NDArray[np.int64]
    importance: npt.NDArray[np.float32]
    decoded: npt.NDArray[np.bool_]
    confidence: npt.NDArray[np.float32]
    position: npt.NDArray[np.int16]
    kept: npt.NDArray[np.bool_]

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return int(self.importance.shape[1])

    @property
    def masked_per_row(self) -> npt.NDArray[np.int64]:
        """M of each row, [rows]."""
        return np.diff(self.row_starts)

    @property
    def decoded_per_row(self) -> npt.NDArray[np.int64]:
        """Positions that each row's step decoded, [rows]."""
        return self.sum_per_row(self.decoded)

    @property
    def rank(self) -> npt.NDArray[np.int64]:
        """Place of each position among its row's masked ones, 0 for the leftmost, [n]."""
        starts = np.repeat(self.row_starts[:-1], self.masked_per_row)
        return np.arange(len(self.decoded)) - starts

    def save(self, path: Path) -> None:
        """Write as a compressed numpy archive, under the very name given."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        with path.open("wb") as file:  # given a name, numpy would append .npz to it
            np.savez_compressed(file, **values)

    @classmethod
    def load(cls, path: Path) -> "DecodabilityRecords":
        """Read what `save` wrote; raises UsageError naming a file that is something else."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {f.name: archive[f.name] for f in dataclasses.fields(cls)}
        # A damaged archive raises anything from BadZipFile and zlib.error to NotImplementedError.
        except Exception as error:
            raise UsageError("records of decodability", str(path), "a whole .npz file") from error
        return cls(
            **arrays
            | {
                "num_heads": int(arrays["num_heads"]),
                "block_length": int(arrays["block_length"]),
                "threshold": float(arrays["threshold"]),
                "alphas": tuple(arrays["alphas"].tolist()),
            }
        )

    def sum_per_row(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
        """Sums of whole numbers or booleans [n] over each row, [rows]."""
        total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.asarray(total[self.row_starts[1:]] - total[self.row_starts[:-1]])

    def delta(self, layer: int, earlier: int) -> npt.NDArray[np.float32]:
        """Importance of `layer` minus that of `earlier`, [n] (paper Eq. 3: layers 1 and 0)."""
        return np.asarray(self.importance[:, layer] - self.importance[:, earlier])
