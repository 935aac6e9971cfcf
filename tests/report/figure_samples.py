"""Reports in memory and folders on disk for the tests of figures and pages."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from report_samples import PROVENANCE, make_point, make_request, make_run, make_step

from focus_bench.core.config import DecodeConfig, EngineConfig, PointConfig, WorkloadConfig
from focus_bench.core.records import RunRecord
from focus_bench.report.failures import PointFailure
from focus_bench.report.figures.data import ReportData
from focus_bench.report.figures.records import PointRecords
from focus_bench.report.folder import ResultFolder
from focus_bench.report.manifest import new_manifest, planned_points
from focus_bench.report.quality_folder import QualityFolder
from focus_bench.report.quality_results import QualityPlan, QualityResult
from focus_bench.report.results import PointResult, result_of


def data_of(
    results: Sequence[PointResult] = (), quality: Sequence[QualityResult] = ()
) -> ReportData:
    """A report without files."""
    return ReportData(
        results=tuple(results),
        quality=tuple(quality),
        failures=(),
        manifests=(),
        records=PointRecords(),
    )


def a_run(*, tokens: int = 400, source: str = "measured", requests: int = 4) -> RunRecord:
    return make_run(
        [
            make_request(i, output_tokens=tokens, first_token_s=2.0 + i, finished_s=4.0 + 2 * i)
            for i in range(requests)
        ],
        [make_step(i, start_s=float(i)) for i in range(3)],
        source=source,
        tokens_per_step_counts=np.array([0, 3, 1]),
        notes=("calibrated on cpu (a, b)",) if source == "predicted" else (),
    )


def write_folder(
    path: Path,
    points: Sequence[PointConfig],
    *,
    sources: Sequence[str] = ("measured", "predicted"),
    failed: Sequence[PointConfig] = (),
    failed_requests: bool = False,
) -> Path:
    """A folder as run leaves it: more tokens the larger the batch, more with focus."""
    manifest = new_manifest(planned_points(points, source=sources[0]), command="run", seed=0)
    with ResultFolder.create(path, manifest) as folder:
        for point in points:
            for source in sources:
                tokens = (
                    10 * point.scheduler.batch_size * (2 if "focus" in point.decode.policy else 1)
                )
                run = a_run(tokens=tokens, source=source)
                if failed_requests:
                    bad = make_request(9, finish_reason="error", error="no <page>", output_tokens=0)
                    run = make_run([bad], run.steps, source=source)
                runs = (run, a_run(tokens=tokens + 4)) if source == "measured" else ()
                folder.add_point(
                    result_of(point, run, provenance=PROVENANCE, hardware="cpu", runs=runs), run
                )
        for point in failed:
            folder.add_failure(
                PointFailure(
                    point_hash=point.hash(),
                    source="measured",
                    hardware="cpu",
                    point=point,
                    reason="out of <memory>",
                )
            )
    return path


def write_quality(path: Path) -> Path:
    """A folder as eval leaves it, two policies."""
    manifest = new_manifest((), command="eval", seed=0)
    with QualityFolder.create(path, manifest) as folder:
        for policy, score in (("baseline", 0.95), ("focus", 0.9)):
            folder.add(quality_result(policy, score), [])
    return path


def quality_result(policy: str, score: float, **decode: object) -> QualityResult:
    point = PointConfig(
        decode=DecodeConfig(policy=policy, **decode),  # type: ignore[arg-type]
        engine=EngineConfig(model="tiny"),
        workload=WorkloadConfig(dataset="focus-tasks-problems", num_prompts=40),
    )
    plan = QualityPlan(point=point, scorer="focus-bench", benchmark="x", metric="exact match")
    return QualityResult(
        plan=plan,
        scores=(score,),
        num_problems=40,
        is_binomial=True,
        decoding=result_of(point, a_run(), provenance=PROVENANCE, hardware="cpu"),
    )


def sweep(
    policies: Sequence[str] = ("baseline", "focus"),
    batches: Sequence[int] = (8, 32),
    blocks: Sequence[int] = (16, 32),
    alphas: Sequence[float] = (1.5,),
) -> list[PointConfig]:
    return [
        make_point(policy, batch_size=batch, block_length=block, alpha=alpha)
        for batch in batches
        for block in blocks
        for policy in policies
        for alpha in (alphas if policy == "focus" else (1.5,))
    ]
