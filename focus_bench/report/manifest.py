"""What run.json says about a result folder: what was asked for, by which program, where and when.

Knows no figures; they are in the point files.
"""

import datetime
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import focus_bench
from focus_bench.core.config import PointConfig
from focus_bench.core.records import SCHEMA_VERSION
from focus_bench.core.workload import Provenance

_PACKAGES = ("numpy", "torch", "triton", "transformers", "tokenizers", "simpy", "rich")


@dataclass(frozen=True, kw_only=True)
class PlannedPoint:
    """A point that a command was asked for: its hash and its resolved configuration."""

    point_hash: str
    source: str
    hardware: str
    config: PointConfig


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """run.json. `machine`: device, driver, clocks and system; `data`: provenance of every workload
    that was run; `metadata`: what the user gave with --metadata.
    """

    schema_version: int
    focus_bench_version: str
    git_commit: str
    created_utc: str
    command: str
    seed: int
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    metadata: Mapping[str, str]
    points: tuple[PlannedPoint, ...]
    data: tuple[Provenance, ...] = field(default=())


def planned_points(
    points: Sequence[PointConfig], *, source: str, hardware: str = ""
) -> tuple[PlannedPoint, ...]:
    """The planned points of one source on one piece of hardware."""
    return tuple(
        PlannedPoint(point_hash=point.hash(), source=source, hardware=hardware, config=point)
        for point in points
    )


def new_manifest(
    points: tuple[PlannedPoint, ...],
    *,
    command: str,
    seed: int,
    machine: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Manifest:
    """A manifest of now, with the versions and the system of this process.

    `machine` adds what only the executor knows (GPU name, driver, clocks).
    """
    return Manifest(
        schema_version=SCHEMA_VERSION,
        focus_bench_version=focus_bench.__version__,
        git_commit=git_commit(),
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        seed=seed,
        versions=package_versions(),
        machine={**system_facts(), **(machine or {})},
        metadata=dict(metadata or {}),
        points=points,
    )


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that figures depend on; none of them is imported."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def system_facts() -> dict[str, str]:
    """Operating system and processor."""
    return {"system": platform.platform(), "processor": _processor()}


def git_commit() -> str:
    """Commit of the checkout that the package runs from; "" where it is no checkout.

    A change that is not committed adds "-dirty".
    """
    root = Path(focus_bench.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
