"""Measures the points of sdar-8b.json, which were fixed before any GPU was calibrated.

python docs/held-out/measure.py FOLDER SEEDS [FLAG...]. SEEDS: 101,102 or the like; points that
the folder holds already are skipped. Flags behind them go to every run (--dataset-path,
--tokenizer). Needs an NVIDIA GPU with 80 GB.
"""

import sys
import time

from focus_bench.cli.main import main

COMMON = "run --model sdar-8b --load-format dummy --no-predict --resume --quiet --ignore-eos"
# What the scores of random weights would keep, no prediction could know (importance is computed at
# its full cost all the same).
ACCEPTANCE = "--acceptance synthetic:2.13 --importance synthetic"
# Policies by block lengths and batch sizes; the budget's expansion; arrivals over time.
GROUPS = (
    "--policy baseline,delayed-cache-neighbor,focus --block-length 16,32,64 --batch-size 12"
    " --num-prompts 48 --max-new-tokens 48",
    "--policy baseline,delayed-cache-neighbor,focus --block-length 16,32,64 --batch-size 96"
    " --num-prompts 96 --max-new-tokens 48",
    "--policy focus --alpha 1.2,1.8 --batch-size 24,192 --num-prompts 192 --max-new-tokens 32",
    "--policy baseline,delayed-cache-neighbor --batch-size 192 --num-prompts 192"
    " --max-new-tokens 32",
    "--policy baseline,focus --batch-size 64 --request-rate 20 --num-prompts 96"
    " --max-new-tokens 48",
    "--policy baseline,focus --batch-size 64 --request-rate 48 --num-prompts 96"
    " --max-new-tokens 48",
)


def measure(folder: str, seeds: list[int], flags: list[str]) -> int:
    """Every group with every seed into one folder; returns the first exit code that is not 0."""
    for seed in seeds:
        for group in GROUPS:
            begin_s = time.perf_counter()
            command = f"{COMMON} {ACCEPTANCE} {group} --seed {seed}".split()
            code = main([*command, "--output-dir", folder, *flags])
            print(f"seed {seed}: {group}: {time.perf_counter() - begin_s:.1f} s", flush=True)
            if code:
                return code
    return 0


if __name__ == "__main__":
    raise SystemExit(
        measure(sys.argv[1], [int(seed) for seed in sys.argv[2].split(",")], sys.argv[3:])
    )
