"""focus-bench calibrate: measures this machine's cost profile for the simulator."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated as A

import typer

from focus_bench.cli.flags import PATH, takes
from focus_bench.cli.options import DeviceFlags
from focus_bench.core.errors import UsageError, check_range

if TYPE_CHECKING:
    from rich.console import Console

    from focus_bench.api.engine import Engine
    from focus_bench.sim.calibration import Profile


MAX_SECONDS = 86_400.0
# By what factor errors of two calibrations of one quiet machine may differ.
WORSE = 1.25


@dataclass(frozen=True, kw_only=True)
class CalibrateFlags(DeviceFlags):
    """The flags of calibrate."""

    seconds: A[
        float | None,
        typer.Option(
            help="How long to measure, at least.", show_default="15; on a GPU 180, at most"
        ),
    ] = None
    output: A[
        Path | None,
        typer.Option(
            help="File to write the profile to.",
            show_default="the user's cache, where run and simulate find it",
            **PATH,
        ),
    ] = None
    check: A[
        Path | None,
        typer.Option(
            help="Measure nothing: say whether this profile, made here or elsewhere, is right.",
            show_default="none",
            **PATH,
        ),
    ] = None


@takes(CalibrateFlags)
def command(flags: CalibrateFlags) -> int:
    """Measure this machine's costs for the simulator, or check a profile that was made elsewhere.

    On a CPU costs are fitted to steps of every kind. On a GPU each operation is measured by itself,
    against the sizes that it depends on; that profile is what --output and --check are about.
    """
    from focus_bench.api.engine import Engine
    from focus_bench.api.profiles import CALIBRATION_S, CPU, MIN_CALIBRATION_S
    from focus_bench.cli.paths import check_writable
    from focus_bench.report.console import make_console

    console = make_console()
    if flags.check is not None:
        return _check(flags.check, console)
    if flags.seconds is not None:
        check_range("--seconds", flags.seconds, low=MIN_CALIBRATION_S, high=MAX_SECONDS)
    check_writable("--output", flags.output)
    engine = Engine(
        flags.model,
        load_format=flags.load_format,
        device=flags.device,
        dtype=flags.dtype,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        mask_token_id=flags.mask_token_id,
        threads=flags.threads,
        cuda_graphs=flags.cuda_graphs,
    )
    if engine.hardware == CPU:
        seconds = CALIBRATION_S if flags.seconds is None else flags.seconds
        _measure_steps(engine, seconds, flags.output, console)
    else:
        try:
            _measure_operations(engine, flags, console)
        except UsageError as error:
            if flags.output is not None:
                raise
            console.print(f"operations are not measured: {error}", soft_wrap=True)
            _measure_steps(engine, CALIBRATION_S, None, console)
    return 0


def _measure_steps(
    engine: "Engine", seconds: float, output: Path | None, console: "Console"
) -> None:
    from focus_bench.api.profiles import cache_problem, calibrate, profile_path, usable_profile

    path = output or profile_path(engine)
    before = usable_profile(path)
    profile = calibrate(engine, seconds=seconds, path=output)
    _describe_steps(profile, console)
    if before is not None:
        _say_if_worse(before.error_p90, profile.error_p90, "the fit's p90", console)
    problem = "" if output else cache_problem()
    console.print(problem or f"profile: {path}", soft_wrap=True)


def _say_if_worse(before: float, now: float, what: str, console: "Console") -> None:
    from focus_bench.report.formats import share

    if now > WORSE * before:
        console.print(
            f"worse than the profile that was there: error of {what} {share(now)}, not "
            f"{share(before)}; calibrate again on an idle machine, or with more --seconds",
            soft_wrap=True,
        )


def _measure_operations(engine: "Engine", flags: CalibrateFlags, console: "Console") -> None:
    from focus_bench.api.profiles import (
        GPU_CALIBRATION_S,
        cache_problem,
        calibrate_operations,
        held_out_error,
        operations_path,
        samples_path,
        usable_operations,
    )
    from focus_bench.report.profiles import describe_operations

    seconds = GPU_CALIBRATION_S if flags.seconds is None else flags.seconds
    path = flags.output or operations_path(engine)
    before = usable_operations(path)
    calibration = calibrate_operations(engine, seconds=seconds, path=flags.output)
    console.print(describe_operations(calibration))
    if before is not None:
        errors = held_out_error(before), held_out_error(calibration)
        _say_if_worse(*errors, "held-out points", console)
    problem = "" if flags.output else cache_problem()
    if problem:
        console.print(problem, soft_wrap=True)
        return
    console.print(f"profile of operations: {path}", soft_wrap=True)
    console.print(f"samples: {samples_path(path)}", soft_wrap=True)


def _check(path: Path, console: "Console") -> int:
    from focus_bench.api.profiles import check_profile, naming_flag
    from focus_bench.core.op_curves import GpuCalibration
    from focus_bench.core.profile_check import VERDICT
    from focus_bench.report.profiles import describe_operations
    from focus_bench.sim.fit_check import LIMITS_TEXT

    with naming_flag("--check"):
        profile, problems = check_profile(path)
    for problem in problems:
        print(f"focus-bench: --check {path}: {problem}", file=sys.stderr)
    if problems:
        return 2
    if isinstance(profile, GpuCalibration):
        console.print(describe_operations(profile))
        console.print(VERDICT, soft_wrap=True)
    else:
        _describe_steps(profile, console)
        console.print(LIMITS_TEXT, soft_wrap=True)
    return 0


def _describe_steps(profile: "Profile", console: "Console") -> None:
    from focus_bench.report.formats import share

    console.print(profile.label)
    console.print(
        f"{profile.samples.num_steps} steps; error of the fit: {share(profile.error_p50)} of a "
        f"step at p50, {share(profile.error_p90)} at p90, {share(profile.error_total)} in all"
    )
