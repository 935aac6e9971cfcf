"""Measured operations of GPUs: those of this machine's user and those of the package, and the best.

Knows files; what is predicted from them is the simulator's business.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from focus_bench.api.profiles import operations_path, profiles_folder, usable_operations
from focus_bench.core.hardware import Hardware, sheet_of_device
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.op_curves import GpuCalibration

if TYPE_CHECKING:
    from focus_bench.api.engine import Engine
    from focus_bench.api.prediction import Target


def operations_for(hardware: Hardware, spec: ModelSpec) -> GpuCalibration | None:
    """The operations to predict `spec` on a GPU from: measured there, if possible of that model;
    else of that model on another GPU; else any of a model of its kind (GpuCalibration.covers).
    None: nothing such was measured.

    Of equals the newest in the user's cache comes first.
    """
    best: tuple[int, GpuCalibration] | None = None
    for calibration in _all():
        if not calibration.covers(spec):
            continue
        same_device = sheet_of_device(calibration.device) == hardware
        same_model = calibration.is_of(spec)
        rank = 2 * same_device + same_model
        if best is None or rank > best[0]:
            best = (rank, calibration)
    return None if best is None else best[1]


def target_of_engine(engine: "Engine") -> "Target | None":
    """What predicts the very engine from its own measured operations; None if there are none."""
    from focus_bench.api.prediction import target_of_operations

    calibration = usable_operations(operations_path(engine))
    if calibration is None or not calibration.is_of(engine.spec):
        return None
    return target_of_operations(calibration)


def _all() -> Iterator[GpuCalibration]:
    from focus_bench.sim.calibration import bundled_profiles

    own = sorted(
        profiles_folder().glob("*_operations.json"),
        key=lambda file: file.stat().st_mtime,
        reverse=True,
    )
    for path in (*own, *bundled_profiles().values()):
        calibration = usable_operations(path)
        if calibration is not None:
            yield calibration
