"""Three time models beside the measured points of a folder: throughput errors in percent.

python docs/held-out/models.py FOLDER PROFILE. Roofline: the data sheet alone. Table: each step is
the mean of the four most similar measured steps of the calibration, weighted by likeness. Curves:
what `simulate` uses. All three simulate the same requests with the same decisions.
"""

import sys
from pathlib import Path

import numpy as np

from focus_bench.api.prediction import Target, target_of_file
from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.core.calibration import StepCounts
from focus_bench.core.costs import StepShape
from focus_bench.core.gpu_profile_file import load_gpu_calibration
from focus_bench.core.hardware import sheet_of_device
from focus_bench.core.records import StepTiming
from focus_bench.report.folder import load_folder
from focus_bench.report.results import result_of
from focus_bench.sim.simulate import simulate_point
from focus_bench.sim.uncertainty import seconds_of

FEATURES = ("prefill_tokens", "rows", "fed", "kept", "later_keys", "evicting_rows")
NEIGHBOURS = 4


class StepTable:
    """A cost model that looks steps up."""

    label = "table of steps"

    def __init__(self, profile: Path) -> None:
        samples = load_gpu_calibration(profile).steps["graph"]
        counts = [samples.counts[name] for name in FEATURES]
        self._places = np.log1p(np.stack(counts, axis=1).astype(np.float64))
        self._seconds = seconds_of(samples).sum(axis=1)

    def step_timing(self, shape: StepShape) -> StepTiming:
        """Seconds of one step."""
        counts = StepCounts.of(shape)
        place = np.log1p([float(getattr(counts, name)) for name in FEATURES])
        distance = np.square(self._places - place).sum(axis=1)
        nearest = np.argsort(distance)[:NEIGHBOURS]
        weights = 1.0 / (distance[nearest] + 1e-6)
        seconds = float(weights @ self._seconds[nearest] / weights.sum())
        return StepTiming(duration_s=seconds, suffix_s=seconds)


def main(folder: Path, profile: Path) -> None:
    """Print the table."""
    curves, cache, table = target_of_file(profile), WorkloadCache(), StepTable(profile)
    sheet = sheet_of_device(load_gpu_calibration(profile).device)
    assert sheet is not None
    roofline = Target(name=sheet.name, hardware=sheet)
    errors: dict[str, list[float]] = {"roofline": [], "table": [], "curves": []}
    points: dict[tuple[object, ...], dict[str, list[float]]] = {}
    for result in load_folder(folder).results:
        point, workload = result.point, cache.of(result.point)
        found = {
            "roofline": roofline.predict(point, workload),
            "curves": curves.predict(point, workload),
        }
        pages = found["curves"].num_pages or 1
        spec = curves.spec_of(point)
        found["table"] = simulate_point(point, workload, spec, cost_model=table, num_pages=pages)
        key = (
            point.decode.policy,
            point.scheduler.batch_size,
            point.decode.block_length,
            point.decode.alpha,
            point.workload.request_rate,
        )
        for name, record in found.items():
            own = result_of(point, record, provenance=workload.provenance, hardware=sheet.name)
            ours, theirs = own.metrics.output_throughput, result.metrics.output_throughput
            assert ours is not None
            assert theirs is not None
            errors[name].append(100.0 * (ours / theirs - 1.0))
            points.setdefault(key, {n: [] for n in errors})[name].append(errors[name][-1])
    print("policy,batch,block_length,alpha,request_rate,runs,roofline,table,curves")
    for names, of in points.items():
        means = ",".join(f"{np.mean(of[name]):+.1f}" for name in errors)
        print(",".join(map(str, names)), len(of["curves"]), means, sep=",")
    for name, values in errors.items():
        means_of_points = [abs(float(np.mean(of[name]))) for of in points.values()]
        print(
            f"{name}: {len(values)} runs, mean absolute error {np.abs(values).mean():.1f} %, worst "
            f"{np.abs(values).max():.1f} %; points {np.mean(means_of_points):.1f} %, worst "
            f"{max(means_of_points):.1f} %"
        )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
