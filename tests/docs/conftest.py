"""Result folders of small real runs, which the documentation of files is held against."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from focus_bench.cli.main import main

COMMON = ("--dataset", "synthetic", "--num-prompts", "3", "--max-new-tokens", "8", "--quiet")


@pytest.fixture(scope="session", autouse=True)
def _own_home() -> Iterator[None]:
    """No GPU, no cache and no terminal of the user's: outputs must not depend on them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of simulate: two finished points, one that failed, and traces beside it."""
    folder = tmp_path_factory.mktemp("predicted")
    arguments = ["simulate", *COMMON, "--model", "dummy-tiny,sdar-8b", "--policy", "focus"]
    arguments += ["--batch-size", "2", "--gpu", "a100-sxm4-80g", "--goodput", "ttft:500"]
    arguments += ["--gpu-memory-utilization", "0.1", "--metadata", "why=docs"]
    arguments += ["--perfetto", str(folder / "trace.json"), "--output-dir", str(folder / "out")]
    assert main(arguments) == 1  # the large model does not fit into a tenth of the memory
    assert len(os.listdir(folder / "out" / "failed")) == 1
    return folder


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of run with several runs of its point."""
    folder = tmp_path_factory.mktemp("measured") / "out"
    arguments = ["run", *COMMON, "--model", "dummy-tiny", "--policy", "focus", "--batch-size", "2"]
    arguments += ["--num-runs", "2", "--num-warmups", "0", "--no-predict"]
    assert main([*arguments, "--output-dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eval."""
    folder = tmp_path_factory.mktemp("evaluated") / "out"
    arguments = ["eval", "--num-problems", "2", "--max-new-tokens", "16", "--quiet"]
    arguments += ["--policy", "baseline,focus-fixed", "--retain", "4"]
    assert main([*arguments, "--output-dir", str(folder)]) == 0
    return folder
