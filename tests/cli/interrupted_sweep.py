"""A sweep with a stop in it, for tests to interrupt; run as a program of its own.

    interrupted_sweep.py WHERE FLAGS...

Prints "at WHERE" on standard error when the second point gets there, and waits: "running" between
instructions of Python, "library" in one long call of a C library that lets no signal through,
"writing" in the middle of writing a finished point.
"""

import hashlib
import os
import sys
import time

from focus_bench.api.prediction import Target
from focus_bench.cli.main import main
from focus_bench.report import atomic

LONG_S = 30.0
WHERE = sys.argv[1]
points_begun = 0


def arrived() -> bool:
    if points_begun != 2:
        return False
    print(f"at {WHERE}", file=sys.stderr, flush=True)
    return True


def wait_in_library() -> None:
    # Some 1e6 rounds a second; the GIL is free, but the main thread sees no signal before the end.
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 200_000_000)


original_predict, original_replace = Target.predict, os.replace


def predict(self, point, *rest, **options):
    global points_begun
    points_begun += 1
    if WHERE in ("running", "library") and arrived():
        end = time.monotonic() + LONG_S
        while WHERE == "running" and time.monotonic() < end:
            time.sleep(0.01)
        wait_in_library()
    return original_predict(self, point, *rest, **options)


def replace(source, target):
    if WHERE == "writing" and str(target).endswith(".requests.csv") and arrived():
        time.sleep(1.0)  # longer than the grace: the write is waited for
    original_replace(source, target)


Target.predict = predict
atomic.os.replace = replace
sys.exit(main(sys.argv[2:]))
