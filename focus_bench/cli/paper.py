"""focus-bench paper: the paper's tables and figures with its own beside: quality measured here,
throughput simulated (see paper_speed).
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.bench.quality import SCORED_TASKS
from focus_bench.cli.flags import takes
from focus_bench.cli.paper_options import CPU_BATCH, GPU_BATCH, PaperFlags
from focus_bench.core.model_spec import DEFAULT_MODEL

if TYPE_CHECKING:
    from focus_bench.api.engine import Engine
    from focus_bench.bench.paper_parts import Part
    from focus_bench.bench.quality import TaskChoice
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.core.config import DecodeConfig, PointConfig
    from focus_bench.core.decodability import DecodabilityRecords
    from focus_bench.core.records import RunRecord
    from focus_bench.core.workload import Workload
    from focus_bench.report.manifest import Manifest
    from focus_bench.report.progress import SweepProgress
    from focus_bench.report.quality_folder import QualityFolder
    from focus_bench.report.quality_results import QualityPlan, QualityResult
    from focus_bench.scheduling.recorder import Recorder

RESULTS = "results"  # an eval folder with every point
SOME_FAILED = 1


@takes(PaperFlags)
def command(flags: PaperFlags) -> int:
    """Measure or simulate the paper's tables and figures, with the published ones beside.

    Scores are measured on a model here; throughputs are simulated for the paper's hardware.
    """
    from focus_bench.bench.paper import parts_named
    from focus_bench.bench.paper_speed import speed_parts_named
    from focus_bench.cli.paper_speed import SpeedStudy
    from focus_bench.cli.paths import check_writable
    from focus_bench.cli.sweeps import new_folder
    from focus_bench.core.errors import UsageError

    check_writable("--output-dir", flags.output_dir, is_folder=True)
    parts = parts_named(flags.parts)
    simulated = speed_parts_named(flags.parts)
    if flags.resume and flags.output_dir is None:
        raise UsageError("--resume", "no --output-dir", "--resume with --output-dir FOLDER")
    path = flags.output_dir or new_folder("paper")
    # All that can be refused is refused before anything runs.
    speed = SpeedStudy(flags=flags, parts=simulated, path=path) if simulated else None
    measured = _quality(flags, parts, path) if parts else 0
    return max(measured, 0 if speed is None else speed.run())


def _quality(flags: PaperFlags, parts: Sequence[str], path: Path) -> int:
    """Measure the quality parts; returns the exit code."""
    from focus_bench.bench.paper import distinct_decodes, plan_of
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.core.errors import check_choice, check_range
    from focus_bench.engine.device import device_name, resolve_device
    from focus_bench.report.console import make_console
    from focus_bench.report.quality import quality_plan_table

    check_choice("--task", flags.task, SCORED_TASKS)
    check_range("--num-problems", flags.num_problems, low=1)
    hardware = device_name(resolve_device(flags.device))
    workloads = WorkloadCache()
    base = _base_point(flags, on_gpu=hardware != "cpu")
    task = _task(flags, has_chat_template=workloads.tokenizer_of(base).has_chat_template)
    decodes = distinct_decodes(parts, block_length=base.decode.block_length)
    plans = [plan_of(decode, base, task) for decode in decodes]
    if flags.dry_run:
        make_console(quiet=flags.quiet).print(quality_plan_table(plans))
        return 0
    workloads.of(base)  # data that cannot be had is an error before anything runs
    study = _Study(
        flags=flags, path=path, base=base, task=task, workloads=workloads, hardware=hardware
    )
    return study.run(parts, plans)


def _base_point(flags: PaperFlags, *, on_gpu: bool) -> "PointConfig":
    from focus_bench.bench.defaults import default_block_length, importance_for, resolved_engine
    from focus_bench.core.config import (
        DecodeConfig,
        EngineConfig,
        PointConfig,
        SchedulerConfig,
        WorkloadConfig,
    )
    from focus_bench.core.model_folder import resolve_model

    engine = resolved_engine(
        EngineConfig(model=flags.model or DEFAULT_MODEL, device=flags.device, dtype=flags.dtype)
    )
    batch = flags.batch_size or (GPU_BATCH if on_gpu else CPU_BATCH)
    return PointConfig(
        engine=engine,
        decode=DecodeConfig(block_length=default_block_length(resolve_model(engine))),
        importance=importance_for("model", engine=engine),
        scheduler=SchedulerConfig(batch_size=batch),
        workload=WorkloadConfig(
            dataset=flags.task,
            num_prompts=flags.num_problems,
            max_new_tokens=flags.max_new_tokens,
        ),
        seed=flags.seed,
    )


def _task(flags: PaperFlags, *, has_chat_template: bool) -> "TaskChoice":
    from focus_bench.bench.quality import TaskChoice

    return TaskChoice(
        name=flags.task,
        num_problems=flags.num_problems,
        max_new_tokens=flags.max_new_tokens,
        benchmark=flags.task,
        metric="exact match",
        chat=has_chat_template,
    )


@dataclass(kw_only=True)
class _Study:
    """One call: runs what is missing, and writes each part as soon as its last point is there."""

    flags: PaperFlags
    path: Path
    base: "PointConfig"
    task: "TaskChoice"
    workloads: "WorkloadCache"
    hardware: str
    _engine: "Engine | None" = field(default=None, init=False)
    _failed: list[str] = field(default_factory=list, init=False)

    def run(self, parts: Sequence[str], plans: "Sequence[QualityPlan]") -> int:
        """All parts, in order; returns the exit code."""
        from focus_bench.bench.paper import OBSERVED_PARTS
        from focus_bench.cli.interrupts import Interrupted, Interrupts
        from focus_bench.report.console import make_console
        from focus_bench.report.progress import SweepProgress
        from focus_bench.report.quality_folder import QualityFolder

        messages = make_console(sys.stderr, quiet=self.flags.quiet)
        observed = [part for part in parts if part in OBSERVED_PARTS]
        num_runs = len(plans) + bool(observed)
        manifest = self._manifest(plans)
        self.path.mkdir(parents=True, exist_ok=True)
        folder_path = self.path / RESULTS
        kept = f"finished runs and parts are in {self.path}; --resume goes on"
        with (
            QualityFolder.create(folder_path, manifest, resume=self.flags.resume) as folder,
            Interrupts(lambda: kept),
        ):
            missing = [plan for plan in plans if not folder.is_finished(plan, self.hardware)]
            messages.print(
                f"{len(parts)} parts from {num_runs} runs of {self.flags.num_problems} problems on "
                f"{self.hardware}, {len(plans) - len(missing)} finished before; results: "
                f"{self.path}",
                soft_wrap=True,
            )
            try:
                with SweepProgress(messages, len(missing) + bool(observed)) as progress:
                    if observed:
                        self._observe(observed, progress)
                    for part in parts:
                        if part not in OBSERVED_PARTS:
                            self._measure(part, folder, progress)
            except KeyboardInterrupt:
                raise Interrupted(kept) from None
        for problem in self._failed:
            print(f"focus-bench: failed: {problem}", file=sys.stderr)
        return SOME_FAILED if self._failed else 0

    @property
    def _ready_engine(self) -> "Engine":
        """The engine, loaded and warmed up on first use: the first run pays for nothing."""
        from focus_bench.api.engine import Engine

        if self._engine is None:
            self._engine = Engine.for_point(self.base)
            self._engine.warm_up(self.base)
        return self._engine

    def _observe(self, parts: Sequence[str], progress: "SweepProgress") -> None:
        """The parts that rest on one observed run, whose records stay in the folder."""
        from focus_bench.bench.paper import observed_point
        from focus_bench.bench.paper_parts import observed_parts
        from focus_bench.core.decodability import DecodabilityRecords
        from focus_bench.core.labels import point_labels
        from focus_bench.core.model_folder import has_dummy_weights

        count = self.flags.observed_problems or min(256, self.flags.num_problems)
        point = observed_point(self.base, num_problems=count)
        file = self.path / f"observed-{point.hash()}.npz"
        progress.begin_point("observed baseline (fig2, fig3, fig14)", count)
        if self.flags.resume and file.exists():
            records = DecodabilityRecords.load(file)
            progress.end_point("finished before, skipped")
        else:
            records = self._observed(point, progress)
            partial = file.with_name(f".{os.getpid()}-{file.name}")
            records.save(partial)
            partial.replace(file)  # whole or absent, also after a kill
            progress.end_point(f"{len(records.masked_per_row):,} steps of sequences")
        data = self.workloads.of(point).provenance
        dummy = has_dummy_weights(point.engine)
        basis = [
            f"measured: {point.engine.model}, baseline at threshold {records.threshold:g}, "
            f"{count} problems of {point.workload.dataset}, B {records.block_length}, on "
            f"{self.hardware}",
            *point_labels(point, data, dummy_weights=dummy),
            *data.notes,
        ]
        for name, part in observed_parts(records, basis, parts).items():
            self._write(name, part)

    def _observed(self, point: "PointConfig", progress: "SweepProgress") -> "DecodabilityRecords":
        from focus_bench.bench.paper import OBSERVED_ALPHAS

        engine = self._ready_engine

        def on_progress(recorder: "Recorder") -> None:
            progress.update(recorder.num_finished, recorder.output_tokens)

        records, _ = engine.observe(
            point, self.workloads.of(point), alphas=OBSERVED_ALPHAS, on_progress=on_progress
        )
        return records

    def _measure(self, part: str, folder: "QualityFolder", progress: "SweepProgress") -> None:
        """Run the points of a part that no part before it has run, then write the part."""
        from focus_bench.bench.paper import distinct_decodes, plan_of
        from focus_bench.bench.paper_parts import Findings, quality_part_of
        from focus_bench.report.marks import stored_marks

        length = self.base.decode.block_length
        for decode in distinct_decodes([part], block_length=length):
            plan = plan_of(decode, self.base, self.task)
            if not folder.is_finished(plan, self.hardware):
                self._evaluate(plan, folder, progress)
        results = {result.key: result for result in folder.results}

        def result(decode: "DecodeConfig") -> "QualityResult | None":
            plan = plan_of(decode, self.base, self.task)
            return results.get((plan.hash(), self.hardware))

        def marks(decode: "DecodeConfig") -> Sequence[float]:
            return stored_marks(folder.path, plan_of(decode, self.base, self.task))

        findings = Findings(result=result, marks=marks)
        self._write(part, quality_part_of(part, findings, block_length=length))

    def _evaluate(
        self, plan: "QualityPlan", folder: "QualityFolder", progress: "SweepProgress"
    ) -> None:
        """Run one point and keep it; one that fails is named, and the others go on."""
        import traceback

        from focus_bench.bench.quality import evaluate_bundled
        from focus_bench.core.errors import UsageError
        from focus_bench.report.formats import number, share

        engine = self._ready_engine

        def decode(point: "PointConfig", workload: "Workload") -> "RunRecord":
            def on_progress(recorder: "Recorder") -> None:
                progress.update(recorder.num_finished, recorder.output_tokens)

            return engine.evaluate(point, workload, on_progress=on_progress)

        progress.begin_point(_label(plan), self.flags.num_problems)
        try:
            evaluation = evaluate_bundled(
                plan,
                self.workloads.of(plan.point),
                self.workloads.tokenizer_of(plan.point),
                run=decode,
                hardware=self.hardware,
            )
        except Exception as error:  # one point must not cost the others
            reason = " ".join(str(error).split())
            self._failed.append(f"{_label(plan)}: {reason}")
            progress.end_point(f"failed: {reason}")
            if not isinstance(error, UsageError):  # nobody foresaw it: say where it happened
                traceback.print_exception(error)
            return
        folder.add(evaluation.result, evaluation.answers)
        metrics = evaluation.result.decoding.metrics
        if metrics.num_failed:
            self._failed.append(f"{_label(plan)}: {metrics.num_failed} requests failed")
        progress.end_point(
            f"{share(evaluation.result.accuracy.value)} right, "
            f"{number(metrics.output_throughput)} tok/s, {metrics.duration_s:.0f} s"
        )

    def _write(self, name: str, part: "Part") -> None:
        """Table to the terminal and as CSV, chart as PNG and SVG."""
        from focus_bench.cli.paper_speed import write_part

        write_part(name, part, self.path, plots=self.flags.plots, quiet=self.flags.quiet)

    def _manifest(self, plans: "Sequence[QualityPlan]") -> "Manifest":
        from focus_bench.cli.machine import gpu_facts
        from focus_bench.report.manifest import PlannedPoint, new_manifest

        planned = tuple(
            PlannedPoint(
                point_hash=plan.hash(),
                source="measured",
                hardware=self.hardware,
                config=plan.point,
            )
            for plan in plans
        )
        return new_manifest(
            planned,
            command=f"paper {' '.join(self.flags.parts)}",
            seed=self.flags.seed,
            machine={"device": self.hardware, **gpu_facts()},
            metadata={},
        )


def _label(plan: "QualityPlan") -> str:
    decode = plan.point.decode
    parts = [decode.policy, f"threshold {decode.threshold:g}"]
    if decode.policy == "focus":
        parts.append(f"alpha {decode.alpha:g}")
    if decode.policy == "focus-fixed":
        parts.append(f"{decode.select} {decode.retain}")
    if decode.attention_cover != "progress":
        parts.append(f"cover {decode.attention_cover}")
    if decode.budget_average != "block":
        parts.append(f"N_avg per {decode.budget_average}")
    if decode.refresh_prompt:
        parts.append("prompt refreshed")
    return ", ".join(parts)
