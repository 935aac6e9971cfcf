"""Which kept masked positions are decoded in a step, from confidences (algorithm section 1).

Knows no policy and no logits. Rows are sequences, columns the positions of their blocks; every
function returns a mask [n, B] and breaks ties in favour of the lower position.
"""

import numpy as np
import numpy.typing as npt

from focus_bench.core.config import DecodeConfig
from focus_bench.decoding.block_state import BoolArray
from focus_bench.decoding.ranking import largest, leftmost

ConfidenceArray = npt.NDArray[np.float32]


def unmask(confidence: ConfidenceArray, candidates: BoolArray, config: DecodeConfig) -> BoolArray:
    """Apply the configured strategy to `candidates[n,B]` (kept masked positions).

    `confidence[n,B]` float32 is read at candidates only and must be finite there.
    """
    if config.unmasking_strategy == "low_confidence_dynamic":
        return low_confidence_dynamic(confidence, candidates, config.threshold)
    per_step = max(1, config.block_length // config.steps_per_block)
    if config.unmasking_strategy == "low_confidence_static":
        return largest(confidence, candidates, per_step)
    return leftmost(candidates, per_step)


def low_confidence_dynamic(
    confidence: ConfidenceArray, candidates: BoolArray, threshold: float
) -> BoolArray:
    """Every candidate at or above the threshold; if a row has none, its most confident one."""
    passing = candidates & (confidence >= np.float32(threshold))
    short = ~passing.any(axis=1)
    if short.any():
        passing[short] = largest(confidence[short], candidates[short], 1)
    return passing
