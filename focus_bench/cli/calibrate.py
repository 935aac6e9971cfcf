"""focus-bench calibrate: measures this machine's cost profile for the simulator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

import typer

from focus_bench.cli.flags import takes
from focus_bench.cli.options import DeviceFlags


@dataclass(frozen=True, kw_only=True)
class CalibrateFlags(DeviceFlags):
    """The flags of calibrate."""

    seconds: A[float, typer.Option(help="How long to measure, at least.")] = 15.0
    output: A[
        Path | None,
        typer.Option(
            help="File to write the profile to.",
            show_default="the user's cache, where run and simulate find it",
        ),
    ] = None


@takes(CalibrateFlags)
def command(flags: CalibrateFlags) -> int:
    """Measure steps of every kind on this machine and fit the simulator's costs to them."""
    from focus_bench.api.engine import Engine
    from focus_bench.api.profiles import calibrate, profile_path
    from focus_bench.cli.paths import check_writable
    from focus_bench.report.console import make_console
    from focus_bench.report.formats import share

    check_writable("--output", flags.output)
    console = make_console()
    engine = Engine(
        flags.model,
        load_format=flags.load_format,
        device=flags.device,
        dtype=flags.dtype,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        mask_token_id=flags.mask_token_id,
        threads=flags.threads,
    )
    profile = calibrate(engine, seconds=flags.seconds, path=flags.output)
    console.print(profile.label)
    console.print(
        f"{profile.samples.num_steps} steps; error of the fit: {share(profile.error_p50)} of a "
        f"step at p50, {share(profile.error_p90)} at p90, {share(profile.error_total)} in all"
    )
    console.print(f"profile: {flags.output or profile_path(engine)}", soft_wrap=True)
    return 0
