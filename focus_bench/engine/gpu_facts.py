"""Which kernels, driver and versions a measurement on a GPU was made with."""

import hashlib
import re
from pathlib import Path

import triton

from focus_bench.engine import kernels
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.runner import device_settings

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
# Files beside the kernels that a step does not run.
_NOT_RUN = ("benchmark.py", "benchmarking.py", "reference.py")


def kernel_revision(folder: Path | None = None) -> str:
    """12 hexadecimal digits that change with any source of the kernels and their launchers."""
    root = folder or Path(str(kernels.__file__)).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.name not in _NOT_RUN:
            name = path.relative_to(root).as_posix()
            digest.update(f"{name}\0{path.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()[:12]


def driver_version(file: Path = _DRIVER_FILE) -> str:
    """The version of the GPU's driver; "unknown" where the system does not say."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return found.group() if found else "unknown"


def gpu_settings(model: BlockDiffusionModel, *, page_size: int) -> dict[str, str]:
    """Versions and settings that times depend on, for a profile."""
    settings = device_settings(model)
    return {
        "driver": driver_version(),
        "cuda": settings["cuda"],
        "torch": settings["torch"],
        "triton": str(triton.__version__),
        "python": settings["python"],
        "page_size": str(page_size),
    }
