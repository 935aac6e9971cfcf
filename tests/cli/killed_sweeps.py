"""Kills sweeps with SIGKILL and checks what they leave; run as a program of its own.

    killed_sweeps.py random FOLDER KILLS SEED      simulate, at random moments
    killed_sweeps.py measured FOLDER KILLS SEED    run on the CPU, at random moments
    killed_sweeps.py writes FOLDER FIRST STRIDE    simulate, at every STRIDEth rename or removal
                                                   of a file, before and after it by turns

Simulating attempts are forked from this process, which has everything imported, so that each costs
only its points. Prints the figures as JSON; an attempt that lost or repeated a point ends it with
an AssertionError.
"""

import csv
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from focus_bench.api.engine import Engine
from focus_bench.api.prediction import Target
from focus_bench.cli.main import main
from focus_bench.report import atomic, locked_folder
from focus_bench.report.folder import load_folder
from focus_bench.sim.calibration import bundled_profiles

FAILING_BATCH = 3  # points of this batch size fail, so that failures are written and removed too
COMMON = ["--dataset", "synthetic", "--model", "dummy-tiny", "--quiet"]
SIMULATE = ["simulate", "--gpu", "h200", *COMMON, "--num-prompts", "12", "--max-new-tokens", "32"]
MANY = [*SIMULATE, "--policy", "baseline,focus", "--alpha", "1.2,1.5,1.8"]
MANY += ["--batch-size", "1,2,3,4,5,6,7,8"]
FEW = [*SIMULATE, "--policy", "focus", "--batch-size", "2,3,4"]
MEASURED = ["run", *COMMON, "--num-prompts", "3", "--max-new-tokens", "8", "--device", "cpu"]
MEASURED += ["--num-warmups", "0", "--batch-size", "1,2,3,4", "--policy", "baseline,focus"]
MEASURED += ["--profile", str(bundled_profiles()["cpu"])]  # else it would calibrate for long


def run_attempt(arguments: list[str], folder: Path, log: Path, *, is_repaired: bool) -> int:
    """Run or resume a sweep in this process, noting every point that it runs in `log`.

    Until it `is_repaired`, some points run out of memory. Returns the exit code.
    """
    runner: type = Engine if arguments[0] == "run" else Target
    method = "run" if arguments[0] == "run" else "predict"
    original = getattr(runner, method)

    def noted(self, point, *rest, **options):
        with log.open("a") as file:
            file.write(f"{point.hash()}\n")
        if point.scheduler.batch_size == FAILING_BATCH and not is_repaired:
            raise MemoryError("no room")
        return original(self, point, *rest, **options)

    setattr(runner, method, noted)
    return main([*arguments, "--output-dir", str(folder), "--resume"])


@dataclass(kw_only=True)
class Attempt:
    """A process that runs a sweep."""

    pid: int
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def forked(cls, run: Callable[[], int]) -> "Attempt":
        child = os.fork()
        if child:
            return cls(pid=child)
        code = 99
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            code = run()
        finally:
            os._exit(code)

    @classmethod
    def started(cls, folder: Path, log: Path, *, is_repaired: bool) -> "Attempt":
        command = [sys.executable, __file__, "attempt", str(folder), str(log), str(is_repaired)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        return cls(pid=process.pid, process=process)

    def wait(self) -> int:
        """Its exit code, or minus the signal that killed it."""
        if self.process is not None:
            return self.process.wait()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@dataclass(kw_only=True)
class Sweep:
    """One sweep in a folder, attempted again and again until it is finished."""

    arguments: list[str]
    folder: Path
    finished: dict[str, bytes] = field(default_factory=dict)
    num_run: int = 0

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def num_finished(self) -> int:
        """Points that need not be run again."""
        return len(self._hashes())

    def start(
        self, *, is_repaired: bool = False, before: Callable[[], None] = lambda: None
    ) -> Attempt:
        self.log.write_text("")
        if self.arguments is MEASURED:  # a process with torch in it is not to be forked
            return Attempt.started(self.folder, self.log, is_repaired=is_repaired)

        def run() -> int:
            before()
            return run_attempt(self.arguments, self.folder, self.log, is_repaired=is_repaired)

        return Attempt.forked(run)

    def check(self) -> None:
        """After an attempt: nothing lost, nothing repeated, all files whole."""
        ran = self.log.read_text().split()
        self.num_run += len(ran)
        assert self._hashes().isdisjoint(ran), "run again though finished"
        assert len(ran) == len(set(ran)), "run twice in one attempt"
        now = {file.name: file.read_bytes() for file in (self.folder / "points").glob("*.json")}
        for name, content in self.finished.items():
            assert now.get(name) == content, f"lost or changed: {name}"
        if (self.folder / "run.json").exists():
            results = load_folder(self.folder).results
            assert len(results) == len({result.key for result in results}) == len(now)
        else:
            assert not now
        self.finished = now

    def finish(self, whole: Path) -> None:
        """Resume to the end, with every point possible, and compare with an unkilled sweep."""
        assert self.start(is_repaired=True).wait() == 0
        self.check()
        assert not list(self.folder.rglob("*.tmp"))
        assert not list((self.folder / "failed").glob("*"))
        if self.arguments is MEASURED:
            assert outputs(self.folder) == outputs(whole)
        else:
            check_equal(self.folder, whole)

    def _hashes(self) -> set[str]:
        source = "measured" if self.arguments is MEASURED else "predicted"
        return {name.partition("-")[0] for name in self.finished if f"-{source}-" in name}


def check_equal(killed: Path, whole: Path) -> None:
    """Predictions have the same rows, killed or not; their order may differ."""
    for name in ("summary.csv", "requests.csv", "steps.csv"):
        mine, other = (
            sorted(csv.reader((folder / name).read_text().splitlines()))
            for folder in (killed, whole)
        )
        assert mine == other, name
    points = [
        sorted(json.loads((folder / "results.json").read_text())["points"], key=str)
        for folder in (killed, whole)
    ]
    assert points[0] == points[1]


def outputs(folder: Path) -> list[tuple[str, ...]]:
    """What is the same in every measurement of a point, and its prediction."""
    with (folder / "summary.csv").open(newline="") as file:
        columns = ("point_hash", "source", "hardware", "completed", "output_digest", "state")
        return sorted(tuple(row[name] for name in columns) for row in csv.DictReader(file))


def kill_at_random(
    arguments: list[str], root: Path, num_kills: int, seed: int
) -> dict[str, object]:
    rng = random.Random(seed)
    whole = root / "whole"
    begun = time.monotonic()
    assert main([*arguments, "--output-dir", str(whole)]) == 0  # it also imports everything
    sweep_s = time.monotonic() - begun
    # Forked attempts do not start up: shorter ones, so that a sweep is killed several times.
    longest_s = sweep_s if arguments is MEASURED else sweep_s / 4
    kills = sweeps = num_run = 0
    left: list[int] = []
    while kills < num_kills:
        sweep = Sweep(arguments=arguments, folder=root / f"killed-{sweeps}")
        sweeps += 1
        while kills < num_kills:
            running = sweep.start()
            time.sleep(rng.uniform(0.0, longest_s))
            os.kill(running.pid, signal.SIGKILL)
            code = running.wait()
            sweep.check()
            if code != -signal.SIGKILL:  # it had come to its end
                break
            kills += 1
            left.append(sweep.num_finished)
        sweep.finish(whole)
        num_run += sweep.num_run
    return {
        "kills": kills,
        "sweeps": sweeps,
        "points_of_a_sweep": sweep.num_finished,
        "finished_at_kills": left,
        "points_run_in_all": num_run,
    }


def die_at(moment: int, *, after: bool) -> None:
    """Be killed before or after the `moment`th rename or removal of a result folder's file."""
    done = 0

    def dying(change: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(change)
        def call(*arguments: object, **options: object) -> object:
            nonlocal done
            done += 1
            if done == moment and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = change(*arguments, **options)
            if done == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    atomic.os.replace = dying(os.replace)
    locked_folder.Path.unlink = dying(Path.unlink)


def kill_at_writes(root: Path, first: int, stride: int) -> dict[str, object]:
    """Kill a first attempt and a repaired second one at the same moment, then finish."""
    whole = root / "whole"
    assert main([*FEW, "--output-dir", str(whole)]) == 0
    kills, moment = 0, first
    while True:
        sweep = Sweep(arguments=FEW, folder=root / f"killed-{moment}")
        before = functools.partial(die_at, moment, after=moment // stride % 2 == 1)
        codes = []
        for is_repaired in (False, True):
            codes.append(sweep.start(is_repaired=is_repaired, before=before).wait())
            sweep.check()
        kills += codes.count(-signal.SIGKILL)
        sweep.finish(whole)
        if codes[0] != -signal.SIGKILL:  # a whole attempt has fewer writes than that
            return {"kills": kills, "last_moment": moment}
        moment += stride


if __name__ == "__main__":
    kind, root, *rest = sys.argv[1:]
    if kind == "attempt":
        sys.exit(run_attempt(MEASURED, Path(root), Path(rest[0]), is_repaired=rest[1] == "True"))
    if kind == "writes":
        figures = kill_at_writes(Path(root), *map(int, rest))
    else:
        figures = kill_at_random(
            {"random": MANY, "measured": MEASURED}[kind], Path(root), *map(int, rest)
        )
    print(json.dumps(figures))
