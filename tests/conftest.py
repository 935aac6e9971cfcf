"""Fixtures shared by all tests."""

import glob
import os
from pathlib import Path

import pytest

from focus_bench.core.cpu_waits import CpuWaits

# One thread each: two workers of two spinning threads on two cores slow each other down tenfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without an NVIDIA GPU, Triton's kernels run in its interpreter; it asks when it is imported.
if not glob.glob("/dev/nvidia[0-9]*") and not Path("/dev/dxg").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder with the real data sets and the SDAR tokenizer; tests that need it skip without it."""
    root = Path(__file__).resolve().parents[1]
    named = os.environ.get("FOCUS_BENCH_SHARED")
    folder = Path(named) if named else root.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("real data sets are not on this machine (set FOCUS_BENCH_SHARED)")
    return folder


@pytest.fixture(autouse=True)
def _idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else runs beside the tests changes no output."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(CpuWaits, "longest_share_since", lambda self: None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m gpu` collects the engine's tests only: nothing else uses a GPU, and a machine with one
    may lack what the other packages import.
    """
    parts = collection_path.relative_to(Path(__file__).parent).parts
    elsewhere = bool(parts) and parts[0] not in {"engine", "gpu", "conftest.py"}
    return True if config.option.markexpr == "gpu" and elsewhere else None
