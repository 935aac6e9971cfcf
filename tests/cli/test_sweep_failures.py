"""Points that run out of memory: named in every output, and the sweep goes on without them."""

import csv
import json
import weakref
from pathlib import Path

import pytest
import torch

from focus_bench.api.engine import Engine
from focus_bench.cli.main import main
from focus_bench.core.config import PointConfig
from focus_bench.engine import memory
from focus_bench.report.folder import load_folder

COMMAND = ["run", "--dataset", "synthetic", "--num-prompts", "2", "--max-new-tokens", "4"]
COMMAND += ["--num-warmups", "0", "--no-predict", "--model", "dummy-tiny", "--policy", "baseline"]
COMMAND += ["--device", "cpu"]
CUDA_TEXT = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 9 GiB."


def rows(folder: Path) -> list[dict[str, str]]:
    """summary.csv as dictionaries."""
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def too_large(monkeypatch: pytest.MonkeyPatch) -> "list[weakref.ref[torch.Tensor]]":
    """Batch size 2 allocates, then finds no room; what it allocated."""
    allocated: list[weakref.ref[torch.Tensor]] = []
    original = Engine.run

    def run(self, point: PointConfig, *rest, **options):  # type: ignore[no-untyped-def]
        if point.scheduler.batch_size == 2:
            cache = torch.zeros(1000)
            allocated.append(weakref.ref(cache))
            raise torch.OutOfMemoryError(CUDA_TEXT)
        return original(self, point, *rest, **options)

    monkeypatch.setattr(Engine, "run", run)
    return allocated


def test_a_point_without_room_is_recorded_and_the_sweep_goes_on(
    tmp_path: Path,
    too_large: "list[weakref.ref[torch.Tensor]]",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "out"
    arguments = [*COMMAND, "--batch-size", "1,2,3", "--output-dir", str(folder)]
    released: list[bool] = []

    def release() -> None:
        released.append(all(reference() is None for reference in too_large))

    monkeypatch.setattr("focus_bench.engine.memory.release_memory", release)
    assert main(arguments) == 1
    assert released == [True] * 3
    out, err = capsys.readouterr()
    reason = f"out of memory: {CUDA_TEXT}"
    assert "Traceback" not in err
    assert f"failed: {reason}" in err
    assert f"B 32, dummy-tiny, synthetic on cpu: {reason}" in " ".join(out.split())
    states = [(row["batch_size"], row["state"], row["failure"]) for row in rows(folder)]
    assert states == [("1", "finished", ""), ("3", "finished", ""), ("2", "failed", reason)]
    written = json.loads((folder / "results.json").read_text())
    assert [point["batch_size"] for point in written["points"]] == [1, 3]
    (failed,) = written["failed_points"]
    assert (failed["batch_size"], failed["failure"]) == (2, reason)
    assert main(["report", str(folder)]) == 0
    assert reason in " ".join(capsys.readouterr().out.split())
    (failure,) = load_folder(folder).failures
    assert (failure.point.scheduler.batch_size, failure.reason) == (2, reason)


def test_resume_tries_a_failed_point_again_and_forgets_the_failure(
    tmp_path: Path, too_large: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    arguments = [*COMMAND, "--batch-size", "2,1", "--quiet", "--output-dir", str(folder)]
    assert main(arguments) == 1
    assert main([*arguments, "--resume"]) == 1  # still no room: one failure, not two
    assert [row["state"] for row in rows(folder)] == ["finished", "failed"]
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main([*arguments, "--resume"]) == 0
    assert [(row["batch_size"], row["state"]) for row in rows(folder)] == [
        ("1", "finished"),
        ("2", "finished"),
    ]
    assert json.loads((folder / "results.json").read_text())["failed_points"] == []
    assert not list((folder / "failed").iterdir())


def test_pages_that_do_not_fit_fail_at_the_start_of_the_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = [*COMMAND, "--batch-size", "1", "--num-pages", str(10**9)]
    assert main([*arguments, "--output-dir", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "bytes wanted" in err
    assert "failed points" in out
    (row,) = rows(folder)
    assert row["state"] == "failed"
    assert row["failure"].startswith("--num-pages: '1000000000 (")


def test_run_gives_memory_back() -> None:
    """What the command line calls between points frees objects that refer to each other."""
    cycle: list[object] = [torch.zeros(10)]
    cycle.append(cycle)
    tensor = weakref.ref(cycle[0])
    del cycle
    memory.release_memory()
    assert tensor() is None
