"""Measures the points of MODEL.json, which were fixed before the GPU was calibrated for them.

python docs/held-out/measure.py MODEL FOLDER SEEDS [FLAG...]. MODEL: one of GROUPS. SEEDS: 101,102
or the like; points that the folder holds already are skipped. Flags behind them go to every run
(--dataset-path, --tokenizer). Needs an NVIDIA GPU with 80 GB.
"""

import sys
import time

from focus_bench.cli.main import main

COMMON = "run --load-format dummy --no-predict --resume --quiet --ignore-eos"
# What the scores of random weights would keep, no prediction could know (importance is computed at
# its full cost all the same).
ACCEPTANCE = {
    "sdar-8b": "--acceptance synthetic:2.13 --importance synthetic",
    "llada2-mini": "--acceptance synthetic:1.74 --importance synthetic",
}
ALL = "--policy baseline,delayed-cache-neighbor,focus"
# Policies by block lengths and batch sizes; the budget's expansion; arrivals over time.
GROUPS = {
    "sdar-8b": (
        f"{ALL} --block-length 16,32,64 --batch-size 10 --num-prompts 40 --max-new-tokens 40",
        f"{ALL} --block-length 16,32,64 --batch-size 80 --num-prompts 80 --max-new-tokens 40",
        "--policy focus --alpha 1.3,1.7 --batch-size 20,160 --num-prompts 160 --max-new-tokens 32",
        "--policy baseline,delayed-cache-neighbor --batch-size 160 --num-prompts 160"
        " --max-new-tokens 32",
        "--policy baseline,focus --batch-size 48 --request-rate 16 --num-prompts 64"
        " --max-new-tokens 40",
        "--policy baseline,focus --batch-size 48 --request-rate 40 --num-prompts 80"
        " --max-new-tokens 40",
    ),
    "llada2-mini": (
        f"{ALL} --batch-size 10,80 --num-prompts 80 --max-new-tokens 40",
        "--policy focus --alpha 1.3,1.7 --batch-size 40 --num-prompts 80 --max-new-tokens 40",
    ),
}


def measure(model: str, folder: str, seeds: list[int], flags: list[str]) -> int:
    """Every group with every seed into one folder; returns the first exit code that is not 0."""
    for seed in seeds:
        for group in GROUPS[model]:
            begin_s = time.perf_counter()
            command = f"{COMMON} --model {model} {ACCEPTANCE[model]} {group} --seed {seed}"
            code = main([*command.split(), "--output-dir", folder, *flags])
            print(f"seed {seed}: {group}: {time.perf_counter() - begin_s:.1f} s", flush=True)
            if code:
                return code
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in GROUPS:
        raise SystemExit(__doc__)
    given = [int(seed) for seed in sys.argv[3].split(",")]
    raise SystemExit(measure(sys.argv[1], sys.argv[2], given, sys.argv[4:]))
