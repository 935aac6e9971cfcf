"""Robust non-negative least squares over measured seconds. Knows no terms and no steps.

SciPy is loaded when something is fitted, not when a prediction is made.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_REWEIGHTINGS = 8
FLOOR_S = 1e-5  # below it a part is timer noise


def robust_nnls(matrix: FloatArray, seconds: FloatArray, step_s: FloatArray) -> FloatArray:
    """Coefficients [terms], none negative, with matrix [n, terms] @ coefficients ~ seconds [n].

    `step_s` [n]: duration of the step that each row is a part of. A residual is weighted by
    1 / sqrt(its seconds * its step's seconds), between absolute and relative, and reweighted by its
    size (Huber's function at twice the median), so that disturbed rows count little.
    """
    from scipy.optimize import nnls

    base = 1.0 / np.sqrt(step_s * np.maximum(seconds, FLOOR_S))
    weights = base
    solution = np.zeros(matrix.shape[1])
    for _ in range(_REWEIGHTINGS):
        weighted = matrix * weights[:, None]
        # Columns span 15 decimal orders: without scaling the solver's tolerance would drop some.
        scale = np.maximum(np.linalg.norm(weighted, axis=0), 1e-300)
        scaled, _ = nnls(weighted / scale, seconds * weights)
        solution = scaled / scale
        residual = np.abs(matrix @ solution - seconds) / np.maximum(seconds, FLOOR_S)
        typical = max(float(np.median(residual)), 1e-3)
        weights = base / np.sqrt(np.maximum(1.0, residual / (2.0 * typical)))
    return np.asarray(solution)
