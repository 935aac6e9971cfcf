"""Kills simulated sweeps with SIGKILL and checks what they leave; run as a program of its own.

    killed_sweeps.py random FOLDER KILLS SEED    at random moments
    killed_sweeps.py writes FOLDER PARITY        at every second rename or removal of a file

Attempts are forked from this process, which has everything imported, so each costs only its points.
Prints the figures as JSON; an attempt that lost or repeated a point ends it with an AssertionError.
"""

import csv
import functools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from focus_bench.api.prediction import Target
from focus_bench.cli.main import main
from focus_bench.report import atomic, locked_folder
from focus_bench.report.folder import load_folder

FAILING_BATCH = 3  # points of this batch size fail, so that failures are written and removed too
COMMAND = ["simulate", "--gpu", "h200", "--dataset", "synthetic", "--num-prompts", "24"]
COMMAND += ["--max-new-tokens", "64", "--model", "dummy-tiny", "--quiet"]
MANY = [*COMMAND, "--policy", "baseline,focus", "--alpha", "1.2,1.5,1.8"]
MANY += ["--batch-size", "1,2,3,4,5,6,7,8"]
FEW = [*COMMAND, "--policy", "focus", "--batch-size", "2,3,4"]
TABLES = ("summary.csv", "requests.csv", "steps.csv", "results.json")


def attempt(
    arguments: list[str], folder: Path, log: Path, *, is_repaired: bool, before: Callable[[], None]
) -> int:
    """Fork a process that runs or resumes the sweep, and notes every point that it runs in `log`.

    Until it `is_repaired`, some points run out of memory.
    """
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.environ["FOCUS_BENCH_TEST"] = "1"
        original = Target.predict

        def predict(self, point, *rest, **options):
            with log.open("a") as file:
                file.write(f"{point.hash()}\n")
            if point.scheduler.batch_size == FAILING_BATCH and not is_repaired:
                raise MemoryError("no room")
            return original(self, point, *rest, **options)

        Target.predict = predict
        before()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 2)
        code = main([*arguments, "--output-dir", str(folder), "--resume"])
    finally:
        os._exit(code)


class Sweep:
    """One sweep in a folder, attempted again and again until it is finished."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.log")
        self.finished: dict[str, bytes] = {}
        self.num_run = 0

    def start(self, *, is_repaired: bool = False, before: Callable[[], None] = lambda: None) -> int:
        self.log.write_text("")
        return attempt(
            self.arguments, self.folder, self.log, is_repaired=is_repaired, before=before
        )

    def check(self) -> None:
        """After an attempt: nothing lost, nothing repeated, all files whole."""
        ran = self.log.read_text().split()
        self.num_run += len(ran)
        repeated = set(ran) & {name.partition("-")[0] for name in self.finished}
        assert not repeated, f"run again though finished: {repeated}"
        assert len(ran) == len(set(ran)), f"run twice in one attempt: {ran}"
        now = {file.name: file.read_bytes() for file in (self.folder / "points").glob("*.json")}
        for name, content in self.finished.items():
            assert now.get(name) == content, f"lost or changed: {name}"
        if (self.folder / "run.json").exists():
            results = load_folder(self.folder).results
            assert len(results) == len({result.key for result in results}) == len(now)
        else:
            assert not now
        self.finished = now

    def finish(self) -> None:
        """Resume to the end, with every point possible."""
        _, status = os.waitpid(self.start(is_repaired=True), 0)
        assert os.waitstatus_to_exitcode(status) == 0
        self.check()
        assert not list(self.folder.rglob("*.tmp"))
        assert not list((self.folder / "failed").glob("*"))


def check_equal(sweep: Sweep, whole: Path) -> None:
    """A sweep that was killed leaves the rows of one that was not; their order may differ."""
    for name in TABLES:
        mine, other = ((folder / name).read_text() for folder in (sweep.folder, whole))
        if name.endswith(".csv"):
            rows = [sorted(csv.reader(text.splitlines())) for text in (mine, other)]
            assert rows[0] == rows[1], name
        else:
            points = [
                sorted(json.loads(text)["points"], key=lambda point: point["point_hash"])
                for text in (mine, other)
            ]
            assert points[0] == points[1], name


def unkilled(arguments: list[str], folder: Path) -> Path:
    """The same sweep in one go, in this process: it also imports everything."""
    assert main([*arguments, "--output-dir", str(folder)]) == 0
    return folder


def kill_at_random(root: Path, num_kills: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    begun = time.monotonic()
    whole = unkilled(MANY, root / "whole")
    sweep_s = time.monotonic() - begun
    num_points = len(load_folder(whole).results)
    kills = sweeps = num_run = 0
    left: list[int] = []
    while kills < num_kills:
        sweep = Sweep(MANY, root / f"killed-{sweeps}")
        sweeps += 1
        while kills < num_kills:
            child = sweep.start()
            time.sleep(rng.uniform(0.0, sweep_s / 6))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            sweep.check()
            if not os.WIFSIGNALED(status):  # it had come to its end
                break
            kills += 1
            left.append(len(sweep.finished))
        sweep.finish()
        assert len(sweep.finished) == num_points
        check_equal(sweep, whole)
        num_run += sweep.num_run
    return {
        "kills": kills,
        "sweeps": sweeps,
        "points_of_a_sweep": num_points,
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


def kill_at_writes(root: Path, parity: int) -> dict[str, object]:
    """Kill a first attempt and a repaired second one at the same moment, then finish."""
    whole = unkilled(FEW, root / "whole")
    moment = kills = 0
    while True:
        moment += 1
        after = moment % 2 == parity
        before = functools.partial(die_at, moment, after=after)
        sweep = Sweep(FEW, root / f"killed-{moment}")
        signals = []
        for is_repaired in (False, True):
            _, status = os.waitpid(sweep.start(is_repaired=is_repaired, before=before), 0)
            signals.append(os.WIFSIGNALED(status))
            sweep.check()
        kills += sum(signals)
        sweep.finish()
        check_equal(sweep, whole)
        if not signals[0]:  # a whole attempt has fewer writes than that
            return {"kills": kills, "moments": moment - 1}


if __name__ == "__main__":
    kind, root, *numbers = sys.argv[1:]
    run = {"random": kill_at_random, "writes": kill_at_writes}[kind]
    print(json.dumps(run(Path(root), *map(int, numbers))))
