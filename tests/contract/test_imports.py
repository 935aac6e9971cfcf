"""Importing the light parts of the project must not pull in the heavy packages under others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = ("torch", "triton", "transformers")

# Imports the named module and, of a package, every module in it; prints what got loaded.
LOAD_ALL = """
import importlib, json, pkgutil, sys
module = importlib.import_module(sys.argv[1])
if module.__file__ is None:
    sys.exit(f"{sys.argv[1]} is an empty folder, not a package")
if sys.argv[2] == "all":
    for found in pkgutil.walk_packages(module.__path__, module.__name__ + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print(json.dumps(sorted(sys.modules)))
"""


def modules_loaded_by(module: str, *, submodules: bool = True) -> set[str]:
    """Names in sys.modules of a fresh interpreter that imported `module`."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALL, module, "all" if submodules else "only"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    return loaded


@pytest.mark.parametrize(
    ("package", "foreign"),
    [
        ("focus_bench.core", (*HEAVY, "simpy", "scipy", "rich", "typer")),
        ("focus_bench.decoding", (*HEAVY, "simpy", "scipy", "rich", "typer")),
        ("focus_bench.scheduling", (*HEAVY, "simpy", "scipy", "rich", "typer")),
        ("focus_bench.workloads", (*HEAVY, "simpy", "scipy", "typer")),
        ("focus_bench.sim", (*HEAVY, "typer")),
        ("focus_bench.report", (*HEAVY, "simpy", "scipy", "typer")),
        ("focus_bench.bench", (*HEAVY, "simpy", "scipy", "typer")),
        ("focus_bench.cli", (*HEAVY, "simpy", "scipy")),
    ],
)
def test_a_package_loads_nothing_of_the_packages_above_it(
    package: str, foreign: tuple[str, ...]
) -> None:
    assert modules_loaded_by(package) & set(foreign) == set()


@pytest.mark.parametrize("module", ["focus_bench", "focus_bench.api"])
def test_the_top_level_names_load_on_first_use(module: str) -> None:
    loaded = modules_loaded_by(module, submodules=False)
    assert loaded & {*HEAVY, "simpy", "scipy", "typer", "focus_bench.engine"} == set()


def test_the_check_sees_what_a_package_loads() -> None:
    assert "simpy.resources.store" in modules_loaded_by("simpy")
