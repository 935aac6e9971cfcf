"""Cost profiles of this machine: where they are kept, how they are made, which one fits a model.

Knows files and names; measuring is the engine's matter, fitting the simulator's.
"""

import hashlib
import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.core.calibration import dimensions_of, read_json
from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import ModelSpec

if TYPE_CHECKING:
    from focus_bench.api.engine import Engine
    from focus_bench.core.op_curves import GpuCalibration
    from focus_bench.sim.calibration import Profile

CPU = "cpu"
CALIBRATION_S = 15.0
GPU_CALIBRATION_S = 180.0
# In less time not even the shortest of the runs is measured a second time.
MIN_CALIBRATION_S = 1.0


def profiles_folder() -> Path:
    """Where this machine's profiles are kept: in the user's cache ($XDG_CACHE_HOME)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "focus-bench" / "profiles"


def cache_problem() -> str:
    """Why no profile can be kept in the user's cache, in one line; "" where one can."""
    folder = profiles_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror}): the profile is not kept"


def profile_path(engine: "Engine") -> Path:
    """The file of the engine's profile: by device, threads, PyTorch, model and number format.

    A model is its name and a digest of its shape: two checkpoint folders may have one name.
    """
    settings = engine.settings
    threads = f"{settings['threads']}-threads" if engine.hardware == CPU else ""
    model = f"{engine.spec.name}-{_shape_digest(engine.spec)}"
    parts = (engine.hardware, threads, settings["torch"], model, settings["dtype"])
    name = "_".join(_in_file_name(part) for part in parts if part)
    return profiles_folder() / f"{name}.json"


def _shape_digest(spec: ModelSpec) -> str:
    """Eight characters for all that costs depend on; checkpoints of one shape share them."""
    shape = (sorted(dimensions_of(spec).items()), spec.experts)
    return hashlib.blake2b(repr(shape).encode(), digest_size=4).hexdigest()


def calibrate(
    engine: "Engine", *, seconds: float = CALIBRATION_S, path: Path | None = None
) -> "Profile":
    """Measure steps of the engine for some `seconds`, fit a profile to them and keep it.

    `path` None: in the user's cache, where `simulate` and `focus-bench run` find it; nowhere if it
    cannot be written (see `cache_problem`). The runs are random prompts, none of them a user's.
    """
    from focus_bench.sim.calibration import fit_profile, load_profile

    profile = fit_profile(engine.measure_steps(seconds=seconds), name=f"local-{engine.hardware}")
    # Read as every later command will read it, so that all predict alike.
    if path is None and cache_problem():
        with tempfile.TemporaryDirectory() as folder:
            profile.save(Path(folder) / "profile.json")
            return load_profile(Path(folder) / "profile.json")
    target = profile_path(engine) if path is None else path
    _write_whole(target, profile.save)
    return load_profile(target)


def operations_path(engine: "Engine") -> Path:
    """The file of the engine's measured operations, beside its profile."""
    path = profile_path(engine)
    return path.with_name(f"{path.stem}_operations.json")


def usable_operations(path: Path) -> "GpuCalibration | None":
    """Measured operations of a file; None if there is none, or it is of another kind or version."""
    from focus_bench.core.gpu_profile_file import load_gpu_calibration

    if not os.path.isfile(path):  # False also where a folder on the way may not be read
        return None
    try:
        return load_gpu_calibration(path)
    except UsageError:
        return None


def held_out_error(calibration: "GpuCalibration") -> float:
    """The median over the curves of how far points are off that were left out; 0 without any."""
    curves = calibration.curves.values()
    errors = [curve.held_out_p50 for curve in curves if curve.held_out_p50 is not None]
    return statistics.median(errors) if errors else 0.0


def calibrate_operations(
    engine: "Engine", *, seconds: float = GPU_CALIBRATION_S, path: Path | None = None
) -> "GpuCalibration":
    """Measure the operations of an engine on a GPU for some `seconds` and keep them.

    `path` None: in the user's cache, if it can be written. What predictions fit to its steps is
    kept with it. Every sample goes into a CSV file beside it. Raises UsageError on a CPU.
    """
    from focus_bench.core.curve_samples import samples_csv
    from focus_bench.core.gpu_profile_file import from_json, save_gpu_calibration, to_json
    from focus_bench.sim.gpu_profile import with_fits

    calibration, samples = engine.measure_operations(seconds=seconds)
    if path is None and cache_problem():
        return calibration
    target = operations_path(engine) if path is None else path
    # Fitted as every later command will read it, so that all predict alike.
    kept = with_fits(from_json(to_json(calibration), source="calibration"))
    text = samples_csv(samples)
    _write_whole(samples_path(target), lambda file: file.write_text(text, encoding="utf-8"))
    _write_whole(target, lambda file: save_gpu_calibration(kept, file))
    return calibration


def samples_path(profile: Path) -> Path:
    """The CSV file of samples beside a profile of operations."""
    return profile.with_name(f"{profile.stem}_samples.csv")


@contextmanager
def naming_flag(flag: str) -> Iterator[None]:
    """Puts the flag that gave a profile's file before what a UsageError names."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{flag} {error.field}", error.value, error.allowed) from error


def load_either(path: Path) -> "Profile | GpuCalibration":
    """A file's profile of a device's steps, or of a GPU's operations.

    Raises UsageError, naming the file and the key, for what is neither.
    """
    from focus_bench.core.gpu_profile_file import from_json, is_gpu_calibration
    from focus_bench.sim.calibration import load_profile

    value = read_json(path)
    if is_gpu_calibration(value):
        return from_json(value, source=f"profile {path}")
    return load_profile(path)


def check_profile(path: Path) -> "tuple[Profile | GpuCalibration, list[str]]":
    """A profile of either kind, and what is wrong with it: one line each, none if it is right.

    Raises UsageError, naming the file and the key, for what is no profile.
    """
    from focus_bench.core.gpu_profile_file import passed_over
    from focus_bench.core.op_curves import GpuCalibration
    from focus_bench.core.profile_check import profile_problems
    from focus_bench.sim.fit_check import fit_problems
    from focus_bench.sim.gpu_profile import fit_differences

    profile = load_either(path)
    if isinstance(profile, GpuCalibration):
        problems = [*passed_over(path, profile), *profile_problems(profile)]
        return profile, problems or fit_differences(profile)
    return profile, [*passed_over(path), *fit_problems(profile)]


def unusable_profiles() -> list[str]:
    """The files of the user's cache that no prediction uses, and why: one line each."""
    lines = []
    for file in sorted(profiles_folder().glob("*.json")):
        try:
            load_either(file)
        except UsageError as error:
            lines.append(f"ignored {file}: {error}")
    return lines


def _write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Write a file that others see whole or not at all; missing folders are made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    write(partial)
    partial.replace(target)


def profile_of_engine(engine: "Engine") -> "Profile | None":
    """The profile that was calibrated for this very engine; None if there is none yet."""
    profile = usable_profile(profile_path(engine))
    if profile is None or dict(profile.samples.dimensions) != dimensions_of(engine.spec):
        return None
    return profile


def cpu_profile_of(spec: ModelSpec, *, threads: int | None = None) -> "Profile | None":
    """The newest profile of this machine's CPU for a model, else the newest for any model.

    `threads`: of several, those measured with so many come first; None: the number is open.
    Returns None if nothing was calibrated here.
    """
    wanted = None if threads is None else str(threads)

    def is_of_others(profile: "Profile") -> bool:
        return wanted is not None and profile.samples.settings.get("threads") != wanted

    for profiles in (_own_profiles(CPU, spec), _newest_profiles(CPU)):
        if profiles:
            return min(profiles, key=is_of_others)
    return None


def gpu_profile_of(device: str, spec: ModelSpec) -> "Profile | None":
    """The newest profile of a GPU (as PyTorch names it) for a model; None if there is none here."""
    return next(iter(_own_profiles(device, spec)), None)


def _own_profiles(device: str, spec: ModelSpec) -> "list[Profile]":
    wanted = dimensions_of(spec)
    return [p for p in _newest_profiles(device) if dict(p.samples.dimensions) == wanted]


def _newest_profiles(device: str) -> "list[Profile]":
    """Those of a device in the cache, the newest first."""
    files = profiles_folder().glob(f"{_in_file_name(device)}_*.json")
    newest_first = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
    return [profile for file in newest_first if (profile := usable_profile(file)) is not None]


def _in_file_name(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text)


def usable_profile(path: Path) -> "Profile | None":
    """A profile of the cache; None if there is none, or one of another version of this program."""
    from focus_bench.sim.calibration import load_profile

    if not os.path.isfile(path):  # False also where a folder on the way may not be read
        return None
    try:
        return load_profile(path)
    except UsageError:
        return None
