"""The throughput parts of focus-bench paper: simulated, with what is published beside."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.cli.paper_options import PaperFlags

if TYPE_CHECKING:
    from focus_bench.api.host_profiles import HostProfile
    from focus_bench.api.prediction import Target
    from focus_bench.bench.paper_parts import Part
    from focus_bench.bench.paper_speed import PaperSetup, SpeedSetting
    from focus_bench.cli.sweep_options import PointFlags
    from focus_bench.cli.sweeps import Campaign
    from focus_bench.core.config import PointConfig
    from focus_bench.report.folder import ResultFolder
    from focus_bench.report.results import PointResult

PREDICTED = "predicted"  # a simulate folder with every point
MAX_HOST_STEP_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class SpeedStudy:
    """The simulated parts of one call. Raises UsageError for flags that they cannot have."""

    flags: PaperFlags
    parts: Sequence[str]
    path: Path

    def __post_init__(self) -> None:
        # Made now, so that what cannot be had is refused before anything runs.
        assert self._campaigns is not None
        assert self._measured is not None

    def run(self) -> int:
        """Simulate what is missing, then write and show every part; returns the exit code."""
        from focus_bench.bench.workload_cache import WorkloadCache
        from focus_bench.cli.plan import show_plan
        from focus_bench.cli.sweeps import run_campaigns

        workloads = WorkloadCache()
        if self.flags.dry_run:
            return show_plan(self._campaigns, self._point_flags, workloads)
        self.path.mkdir(parents=True, exist_ok=True)
        return run_campaigns(
            self._campaigns,
            command=f"simulate, for paper {' '.join(self.parts)}",
            flags=self._point_flags,
            workloads=workloads,
            show=self._show,
            given_dir=self.path,
        )

    @cached_property
    def _setup(self) -> "PaperSetup":
        from focus_bench.bench.paper_speed import MODEL, PaperSetup
        from focus_bench.cli.points import comma_list, key_values

        flags = self.flags
        return PaperSetup(
            model=flags.model or MODEL,
            num_prompts=flags.num_prompts if flags.num_requests is None else flags.num_requests,
            datasets=comma_list("--dataset", flags.dataset, str, "names"),
            tokenizer=flags.tokenizer,
            paths=key_values("--dataset-path", flags.dataset_path),
            download=flags.download,
            in_rounds=self._host is not None,
            seed=flags.seed,
        )

    @cached_property
    def _host(self) -> "HostProfile | None":
        from focus_bench.api.host_profiles import host_profile
        from focus_bench.bench.paper_speed import MODEL, MODELS
        from focus_bench.core.errors import UsageError, check_range
        from focus_bench.report.paper.published import SDAR

        text = self.flags.host_step_ms
        try:
            step_ms = None if text is None else float(text)
        except ValueError:
            raise UsageError("--host-step-ms", text, "a number of milliseconds") from None
        if step_ms is not None:
            check_range("--host-step-ms", step_ms, low=0.0, high=MAX_HOST_STEP_MS)
        model = MODELS.get(self.flags.model or MODEL, SDAR)  # _setup refuses any other
        return host_profile(self.flags.host_profile, model=model, step_ms=step_ms)

    @cached_property
    def _gpus(self) -> tuple[str, ...]:
        """Those asked for; none: each part has its own."""
        from focus_bench.cli.points import comma_list

        asked = self.flags.gpu
        return () if asked is None else comma_list("--gpu", asked, str, "names")

    @cached_property
    def _targets(self) -> "dict[tuple[str, str], Target]":
        """By GPU and model, whose measured operations may differ."""
        from focus_bench.api.prediction import find_target, with_host

        settings = {_target_key(s): s for part in self.parts for s in self._settings(part)}
        return {
            key: with_host(find_target(s.gpu, s.point.engine), self._host)
            for key, s in settings.items()
        }

    @cached_property
    def _campaigns(self) -> "list[Campaign]":
        """One for each GPU and model, with every point once, whatever part has it."""
        from focus_bench.cli.predictions import prediction_campaign

        points: dict[tuple[str, str], dict[str, SpeedSetting]] = {}
        for part in self.parts:
            for setting in self._settings(part):
                same = points.setdefault(_target_key(setting), {})
                same.setdefault(setting.point.hash(), setting)
        return [
            prediction_campaign(tuple(s.point for s in found.values()), self._targets[key])
            for key, found in points.items()
        ]

    @cached_property
    def _point_flags(self) -> "PointFlags":
        """What run_campaigns reads of the flags of simulate."""
        from focus_bench.cli.sweep_options import PointFlags

        return PointFlags(
            output_dir=self.path / PREDICTED,
            resume=self.flags.resume and (self.path / PREDICTED).is_dir(),
            quiet=self.flags.quiet,
            seed=self.flags.seed,
        )

    def _target_of(self, setting: "SpeedSetting") -> "Target":
        return self._targets[_target_key(setting)]

    def _settings(self, part: str) -> "tuple[SpeedSetting, ...]":
        from focus_bench.bench.paper_speed import speed_settings

        return speed_settings(part, self._setup, gpus=self._gpus)

    @cached_property
    def _measured(self) -> "dict[tuple[PointConfig, str], PointResult]":
        """What the folders of --measured hold, by the work done and the GPU's data sheet."""
        from focus_bench.core.hardware import sheet_of_device
        from focus_bench.report.compare import match_key
        from focus_bench.report.folder import load_folder

        found = {}
        for folder in self.flags.measured or ():
            for result in load_folder(folder).results:
                sheet = sheet_of_device(result.hardware)
                if result.source == "measured" and sheet is not None:
                    found[match_key(result.point), sheet.name] = result
        return found

    def _show(self, folder: "ResultFolder") -> None:
        from focus_bench.api.host_profiles import published_host
        from focus_bench.bench.paper_speed_parts import SpeedFindings, speed_part
        from focus_bench.report.compare import match_key
        from focus_bench.report.console import make_console
        from focus_bench.report.failures import failed_points_table

        findings = SpeedFindings(
            result_of=lambda s: folder.finished(s.point, "predicted", self._target_of(s).name),
            measured_of=lambda s: self._measured.get((match_key(s.point), s.gpu)),
            hardware_of=lambda s: self._target_of(s).name,
            is_calibrated=all(t.profile or t.operations for t in self._targets.values()),
            host_step_s=None if self._host is None else self._host.step_s,
            is_host_fitted=self._host is not None and self.flags.host_step_ms is None,
        )
        host_gap = (published_host(self._setup.published_model),)
        for part in self.parts:
            lines = () if self._host is not None or part == "table5" else host_gap
            made = speed_part(part, self._setup, findings, gpus=self._gpus, lines=lines)
            write_part(part, made, self.path, plots=self.flags.plots, quiet=self.flags.quiet)
        console = make_console(quiet=self.flags.quiet)
        failures = failed_points_table(folder.failures)
        if failures is not None:
            console.print(failures)
        console.print(f"results: {self.path}", soft_wrap=True)


def _target_key(setting: "SpeedSetting") -> tuple[str, str]:
    return setting.gpu, setting.point.engine.model


def write_part(name: str, part: "Part", folder: Path, *, plots: bool, quiet: bool) -> None:
    """Table to the terminal and as CSV, chart as PNG and SVG."""
    from focus_bench.report.atomic import write_atomic
    from focus_bench.report.console import make_console
    from focus_bench.report.plots import write_chart

    write_atomic(folder / f"{name}.csv", part.table.csv())
    if plots:
        write_chart(part.chart, folder / name)
    make_console(quiet=quiet).print(part.table.render())
