"""Predictions: what they can be made for, making them, and setting them beside measurements.

Loads SimPy when a prediction is made, never torch.
"""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.api.engine import Progress
from focus_bench.api.host_profiles import HostBoundModel, HostProfile
from focus_bench.api.points import load_workload
from focus_bench.api.profiles import CPU, cpu_profile_of, load_either, naming_flag
from focus_bench.bench.defaults import acceptance_for, importance_for
from focus_bench.core.calibration import check_applies
from focus_bench.core.config import AcceptanceConfig, EngineConfig, PointConfig
from focus_bench.core.cpu_threads import default_threads
from focus_bench.core.errors import UsageError
from focus_bench.core.hardware import HARDWARE, SHEET_OF_DEVICE, Hardware, sheet_of_device
from focus_bench.core.model_folder import has_dummy_weights, resolve_model, spec_on_device
from focus_bench.core.model_spec import BUNDLED_MODELS, ModelSpec
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload
from focus_bench.decoding.rules import StepRules
from focus_bench.scheduling.setup import pages_wanted

if TYPE_CHECKING:
    from focus_bench.core.op_curves import GpuCalibration
    from focus_bench.report.compare import Comparison
    from focus_bench.report.results import PointResult
    from focus_bench.sim.calibration import Profile
    from focus_bench.sim.cost_model import CostModel
    from focus_bench.sim.gpu_profile import GpuProfile

COSTS_OF = "costs of"  # a prediction's settings name under it what it was made from


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a prediction is for: a calibrated profile, a data sheet, or a profile of a GPU whose
    memory a data sheet gives. `operations`: a GPU's measured operations, maybe another's than
    `hardware`. `host`: another engine's host time; None: the cost model's own. `caveat`: how
    the device is used otherwise than when it was measured; "": as it was.
    """

    name: str
    profile: "Profile | None" = None
    operations: "GpuProfile | None" = None
    hardware: Hardware | None = None
    host: HostProfile | None = None
    caveat: str = ""

    @property
    def device_facts(self) -> dict[str, str]:
        """The device that predictions are for, as the settings of a run measured on it name it."""
        if self.profile is not None:
            measured = self.profile.samples
            names = ("threads",) if measured.device == CPU else ()
            return {
                "device": measured.device,
                **{n: measured.settings[n] for n in names if n in measured.settings},
            }
        if self.hardware is None:
            assert self.operations is not None
            return {"device": self.operations.calibration.device}
        names_of = {sheet: device for device, sheet in SHEET_OF_DEVICE.items()}
        return {"device": names_of.get(self.hardware.name, self.hardware.full_name)}

    @property
    def label(self) -> str:
        """Where its seconds come from, as every output of its predictions says."""
        host = "" if self.host is None else self.host.label
        return "; ".join(filter(None, (self._device_label, self.caveat, host)))

    @property
    def _device_label(self) -> str:
        from focus_bench.sim.roofline import roofline_label

        if self.profile is not None:
            return self.profile.label
        if self.operations is not None:
            return self.operations.label_on(self.hardware)
        assert self.hardware is not None
        return roofline_label(self.hardware)

    @cached_property
    def costs(self) -> str:
        """The label with a digest of the profile, which may be measured anew under one label."""
        from focus_bench.core.gpu_profile_file import to_json

        content: object = None
        if self.profile is not None:
            content = self.profile.to_json()
        elif self.operations is not None:
            content = to_json(self.operations.calibration)
        if content is None:
            return self.label
        digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=6)
        return f"{self.label} [{digest.hexdigest()}]"

    def made(self, result: "PointResult") -> bool:
        """Whether a stored prediction rests on the same costs; one without COSTS_OF, of before it
        was kept, does by its label.
        """
        had = result.settings.get(COSTS_OF)
        if had is None:
            return result.settings.get("device", "").startswith(self._device_label)
        return had == self.costs

    def spec_of(self, point: PointConfig) -> ModelSpec:
        """The point's model in the number format in which it runs there."""
        on_cpu = self.profile is not None and self.profile.samples.kind == CPU
        kind = CPU if on_cpu else "cuda"
        return spec_on_device(resolve_model(point.engine), kind, dtype=point.engine.dtype)

    def get_ready(self, point: PointConfig) -> None:
        """Do what predictions of such points need beside their requests: load what simulates, and
        fit the measured costs. Every prediction does what is left of that.
        """
        import focus_bench.sim.prediction  # noqa: F401

        if self.operations is not None:
            spec = self.spec_of(point)
            if self.operations.calibration.covers(spec):
                self._model_of_operations(point, spec, point.scheduler.batch_size)

    def predict(
        self,
        point: PointConfig,
        workload: Workload,
        *,
        on_progress: Progress | None = None,
        interval: bool = False,
        other_seeds: bool = True,
    ) -> RunRecord:
        """Serve the workload in simulated time; a note says what the costs rest on.

        `interval`: the settings hold intervals of the figures, too (core.intervals), where costs
        were calibrated. `other_seeds`: those allow for other seeds than the point's, too. Raises
        UsageError and CapacityError.
        """
        from focus_bench.report.results import FOR
        from focus_bench.sim.prediction import Prediction, predict

        spec = self.spec_of(point)
        if self.hardware is None:
            num_pages = pages_wanted(point, workload)
        else:
            num_pages = pages_of_engine(point, workload, spec, self.hardware)
        model = self.cost_model(point, workload, spec, num_pages)
        host = self.host
        asked = Prediction(
            point=point,
            workload=workload,
            spec=spec,
            num_pages=num_pages,
            model=model,
            wrap=None if host is None else (lambda base: HostBoundModel(base=base, host=host)),
            source=self.operations or self.profile,
        )
        record = predict(asked, interval=interval, other_seeds=other_seeds, on_progress=on_progress)
        device = {f"{FOR}{name}": value for name, value in self.device_facts.items()}
        return dataclasses.replace(
            record,
            notes=(*record.notes, *filter(None, (self.caveat, self._page_caveat(point, spec)))),
            settings={**record.settings, **device, COSTS_OF: self.costs},
        )

    def _page_caveat(self, point: PointConfig, spec: ModelSpec) -> str:
        """What stands beside a prediction for pages of another size than were measured."""
        if self.operations is None or not self.operations.calibration.covers(spec):
            return ""
        measured = self.operations.calibration.settings.get("page_size")
        if measured in (None, "", str(point.scheduler.page_size)):
            return ""
        return f"measured with --page-size {measured}, not {point.scheduler.page_size}"

    def cost_model(
        self, point: PointConfig, workload: Workload, spec: ModelSpec, num_pages: int
    ) -> "CostModel":
        """The time model of `spec` there, with `num_pages` KV pages; by the data sheet where the
        operations are of another kind of model. Raises UsageError if there is no data sheet then.
        """
        from focus_bench.sim.calibration import ProfileModel
        from focus_bench.sim.roofline import RooflineModel

        self.check_predicts(spec)
        if self.profile is not None:
            return ProfileModel(spec=spec, profile=self.profile)
        if self.operations is not None and self.operations.calibration.covers(spec):
            return self._model_of_operations(point, spec, num_pages)
        assert self.hardware is not None
        return RooflineModel(spec=spec, hardware=self.hardware)

    def check_predicts(self, spec: ModelSpec) -> None:
        """Raise UsageError for a model that neither its profile nor a data sheet is good for."""
        if self.profile is not None:
            check_applies(self.profile.samples.dimensions, spec, profile=self.profile.name)
        elif self.hardware is None:
            assert self.operations is not None
            measured = self.operations.calibration
            if not measured.covers(spec):
                allowed = f"a model with layers as {measured.model} has, on this profile"
                raise UsageError("--model", spec.name, allowed)

    def _model_of_operations(
        self, point: PointConfig, spec: ModelSpec, num_pages: int
    ) -> "CostModel":
        from focus_bench.sim.step_capacity import StepCapacity

        assert self.operations is not None
        capacity = StepCapacity(
            max_rows=min(point.scheduler.batch_size, num_pages),
            block_length=point.decode.block_length,
            cuda_graphs=point.engine.cuda_graphs,
            experts=spec.experts is not None,
        )
        return self.operations.model(spec, capacity, hardware=self.hardware)


def pages_of_engine(
    point: PointConfig, workload: Workload, spec: ModelSpec, hardware: Hardware
) -> int:
    """KV pages as the engine makes them: what fits, but no more than the workload can hold."""
    from focus_bench.sim.simulate import pages_on_hardware

    pages = pages_on_hardware(point, spec, hardware)
    return pages if point.scheduler.num_pages else min(pages, pages_wanted(point, workload))


def target_of_profile(profile: "Profile") -> Target:
    """The device that a profile was calibrated on."""
    sheet = SHEET_OF_DEVICE.get(profile.samples.device, "")
    return Target(name=profile.name, profile=profile, hardware=HARDWARE.get(sheet))


def target_of_operations(calibration: "GpuCalibration", hardware: Hardware | None = None) -> Target:
    """A GPU by measured operations; `hardware` None: the GPU that they were measured on."""
    from focus_bench.sim.gpu_profile import GpuProfile

    sheet = hardware or sheet_of_device(calibration.device)
    name = calibration.device if sheet is None else sheet.name
    return Target(name=name, hardware=sheet, operations=GpuProfile(calibration))


def target_of_file(path: Path) -> Target:
    """What a profile's file was measured on, of either kind. Raises UsageError naming the file."""
    from focus_bench.core.op_curves import GpuCalibration
    from focus_bench.sim.fit_check import check_values

    profile = load_either(path)
    if isinstance(profile, GpuCalibration):
        return target_of_operations(profile)
    check_values(profile, source=f"profile {path}")
    return target_of_profile(profile)


def with_host(target: Target, host: HostProfile | None) -> Target:
    """The same device under another engine's host, whose name stands behind the device's."""
    if host is None:
        return target
    return dataclasses.replace(target, name=f"{target.name}+{host.name}", host=host)


def find_target(name: str, engine: EngineConfig) -> Target:
    """What --gpu names: a data sheet, a packaged profile, a profile's file, or "cpu".

    "cpu" is this machine's calibrated profile (that of the engine's model if there is one, and of
    its threads, or those of a run that names none), else the packaged profile of that name; its
    target says so if the engine names other threads. Raises UsageError naming what exists.
    """
    from focus_bench.sim.calibration import bundled_profiles

    if name == CPU:
        spec = spec_on_device(resolve_model(engine), CPU, dtype=engine.dtype)
        local = cpu_profile_of(spec, threads=engine.threads or default_threads())
        if local is not None:
            return _on_threads(target_of_profile(local), engine.threads)
    packaged = bundled_profiles()
    if name in packaged:
        return _on_threads(target_of_file(packaged[name]), engine.threads)
    if name in HARDWARE:
        return _target_of_sheet(HARDWARE[name], engine)
    if os.path.isfile(name):  # False also for a name that no system takes
        with naming_flag("--gpu"):
            return target_of_file(Path(name))
    known = sorted({CPU, *packaged, *HARDWARE})
    raise UsageError("--gpu", name, f"{', '.join(known)}, or the file of a profile")


def _on_threads(target: Target, threads: int | None) -> Target:
    """The target, with a caveat where it is a CPU that was measured with another number."""
    measured = target.device_facts.get("threads")
    if threads is None or measured in (None, str(threads)):
        return target
    return dataclasses.replace(target, caveat=f"measured with --threads {measured}, not {threads}")


def _target_of_sheet(hardware: Hardware, engine: EngineConfig) -> Target:
    """The GPU by operations that were measured, on it or on another; else by its data sheet."""
    from focus_bench.api.operations import operations_for

    spec = spec_on_device(resolve_model(engine), "cuda", dtype=engine.dtype)
    measured = operations_for(hardware, spec)
    if measured is None:
        return Target(name=hardware.name, hardware=hardware)
    return target_of_operations(measured, hardware)


def check_can_simulate(point: PointConfig) -> None:
    """Raise UsageError for a point whose decisions only a model can take."""
    from focus_bench.sim.executor import check_can_simulate as check

    check(StepRules.for_point(point))


def with_fitted_dynamics(point: PointConfig) -> PointConfig:
    """The point as `focus-bench simulate` has it by default: what a bundled model's confidences
    and importance would decide is drawn from what was fitted. Any other point stays as it is.
    """
    is_bundled = point.engine.model in BUNDLED_MODELS and not has_dummy_weights(point.engine)
    if point.acceptance.kind != "confidence" or not is_bundled:
        return point
    family = resolve_model(point.engine).family
    acceptance = acceptance_for(
        None,
        engine=point.engine,
        family=family,
        dataset=point.workload.dataset,
        simulated=True,
    )
    importance = importance_for(None, engine=point.engine, acceptance=acceptance)
    return dataclasses.replace(point, acceptance=acceptance, importance=importance)


def needs_trace(point: PointConfig) -> bool:
    """Whether a prediction needs the decode trace of a run, since a model decides something."""
    return point.acceptance.kind == "confidence" or (
        point.acceptance.kind == "synthetic" and point.importance.kind == "model"
    )


def replaying(point: PointConfig, trace_file: Path) -> PointConfig:
    """The point with every decision taken from the decode trace of its own run."""
    acceptance = AcceptanceConfig(kind="replay", path=str(trace_file))
    return dataclasses.replace(point, acceptance=acceptance)


def simulate(
    point: PointConfig,
    workload: Workload | None = None,
    *,
    hardware: str = CPU,
    on_progress: Progress | None = None,
) -> RunRecord:
    """Predict a point on `hardware`; see `find_target` for its names. Loads SimPy, not torch.

    `workload` None loads the point's. Confidences and importance scores of the bundled model are
    replaced by what was fitted on its traces (see `with_fitted_dynamics`), which the record's notes
    say. Raises UsageError where those of another model would decide, and CapacityError for a model
    that does not fit.
    """
    point = with_fitted_dynamics(point)
    target = find_target(hardware, point.engine)
    return target.predict(
        point, load_workload(point) if workload is None else workload, on_progress=on_progress
    )


def compare(
    folder: Path | str,
    *,
    hardware: str | None = None,
    points: Path | str | None = None,
    seed: int | None = None,
) -> "tuple[Comparison, ...]":
    """Each measured point of a result folder beside a prediction of it, made now.

    The prediction knows the point's configuration, its workload and, where a model decided, its
    decode trace; none of its measured figures. A point that needs a trace and has none stands
    alone. `hardware` None: the device that measured. `points`: a file of the points that count (see
    report.points_file). `seed`: every prediction is of this one, as if what the run drew were not
    known, so all measured seeds of a point share it, and points that need a trace stand alone;
    None: each is of its run's own seed. Raises UsageError for a folder without measurements, for
    points of the file that were not measured, or data that are not those of then.
    """
    from focus_bench.api.comparison import compare_folder

    return compare_folder(Path(folder), hardware=hardware, points=points, seed=seed).pairs


def trace_file_of(folder: Path, point: PointConfig) -> Path:
    """Where a result folder keeps the decode trace of a point."""
    return folder / "traces" / f"{point.hash()}.npz"


def hardware_of_device(device: str) -> str:
    """What `simulate` calls the device that an engine names `device` (Engine.hardware).

    Raises UsageError for a GPU without a data sheet here.
    """
    if device in (CPU, *SHEET_OF_DEVICE):
        return SHEET_OF_DEVICE.get(device, CPU)
    raise UsageError("device", device, ", ".join((CPU, *SHEET_OF_DEVICE)))
