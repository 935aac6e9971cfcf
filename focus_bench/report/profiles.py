"""Cost profiles in words and tables: what was measured, on what, and how far points are apart.

Knows profiles; neither how they were measured nor what is predicted with them.
"""

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.core.op_curves import GpuCalibration, MeasuredExperts, OpCurve
from focus_bench.report.formats import number, seconds, share
from focus_bench.report.layout import FittedTable, column


def describe_operations(calibration: GpuCalibration) -> RenderableType:
    """Provenance, ceilings and one row a curve.

    Held out: the error of points that are interpolated from their neighbours instead.
    """
    settings = calibration.settings
    ceilings = calibration.ceilings
    experts = calibration.experts
    lines = (
        f"{calibration.device}, driver {settings.get('driver', '-')}: {calibration.model} "
        f"({calibration.dimensions['dtype']}), {calibration.date}, "
        f"{seconds(calibration.duration_s)}",
        f"torch {settings.get('torch', '-')}, CUDA {settings.get('cuda', '-')}, triton "
        f"{settings.get('triton', '-')}, kernels {calibration.kernel_revision}",
        f"copy {number(ceilings['copy_bytes_per_s'])}B/s, products "
        f"{number(ceilings['gemm_flops_per_s'])}FLOP/s; steps: "
        + ", ".join(f"{steps.num_steps} {mode}" for mode, steps in calibration.steps.items()),
        *(() if experts is None else (_load(experts),)),
    )
    return Group(*(Text(line) for line in lines), Text(), _table(calibration))


def _load(experts: MeasuredExperts) -> str:
    """How the tokens that were measured spread, at three numbers of them."""
    load, spec = experts.load, experts.spec
    places = sorted({0, len(load.rows) // 2, len(load.rows) - 1})
    counted = ", ".join(
        f"{number(load.touched[i])} by {load.rows[i]} rows (the busiest has "
        f"{share(load.largest_share[i])})"
        for i in places
    )
    return f"experts: {spec.experts_per_token} of {spec.num_experts} a token; touched {counted}"


def _table(calibration: GpuCalibration) -> FittedTable:
    curves: tuple[OpCurve, ...] = tuple(calibration.curves.values())
    return FittedTable(
        columns=(
            column("curve", curves, lambda curve: str(curve.name), is_name=True),
            column("against", curves, lambda curve: ", ".join(curve.axes)),
            column("points", curves, lambda curve: str(curve.num_points)),
            column("least", curves, lambda curve: seconds(float(curve.seconds.min()))),
            column("most", curves, lambda curve: seconds(float(curve.seconds.max()))),
            column("spread\np50", curves, lambda curve: share(float(np.median(curve.spread)))),
            column("held out\np50", curves, lambda curve: share(curve.held_out_p50)),
            column("\nmost", curves, lambda curve: share(curve.held_out_max)),
        )
    )
