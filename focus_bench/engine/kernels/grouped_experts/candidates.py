"""Tunings worth a measurement, by rows of a tile; knows no time: sweep.py measures them.

Each compiles for sm_90 with Triton 3.6 at the shapes of LLaDA2.0-mini and SDAR-30B-A3B without
spills, and as many programs as it says fit into a multiprocessor's registers and shared memory.
"""

from focus_bench.engine.kernels.grouped_experts.tuning import ProductTuning, Tuning, product

# From the first one of each a search starts.
GATE_UP: dict[int, tuple[ProductTuning, ...]] = {
    16: (
        product(64, 128, warps=4, stages=3, programs=2),
        product(64, 64, warps=4, stages=6, programs=2),
        product(64, 64, warps=4, stages=4, programs=3),
        product(64, 64, warps=4, stages=3, programs=4),
        product(128, 64, warps=4, stages=3, programs=2),
        product(128, 64, warps=8, stages=3, programs=2),
        product(128, 128, warps=8, stages=3, programs=1),
    ),
    32: (
        product(64, 64, warps=4, stages=5, programs=2),
        product(64, 64, warps=4, stages=3, programs=3),
        product(64, 128, warps=4, stages=5, programs=1),
        product(128, 64, warps=4, stages=3, programs=2),
        product(128, 64, warps=8, stages=3, programs=2),
        product(128, 128, warps=8, stages=3, programs=1),
    ),
    64: (
        product(64, 64, warps=4, stages=4, programs=2),
        product(64, 64, warps=4, stages=3, programs=3),
        product(64, 128, warps=4, stages=4, programs=1),
        product(128, 64, warps=4, stages=5, programs=1),
        product(128, 64, warps=8, stages=5, programs=1),
        product(128, 64, warps=8, stages=2, programs=2),
    ),
    128: (
        product(128, 64, warps=8, stages=4, programs=1),
        product(128, 64, warps=8, stages=3, programs=1),
        product(128, 128, warps=8, stages=2, programs=1),
        product(64, 64, warps=4, stages=3, programs=2),
        product(64, 64, warps=8, stages=3, programs=2),
        product(64, 128, warps=8, stages=3, programs=1),
    ),
}
DOWN: dict[int, tuple[ProductTuning, ...]] = {
    16: (
        product(64, 128, warps=4, stages=4, programs=2),
        product(64, 128, warps=4, stages=3, programs=3),
        product(64, 64, warps=4, stages=4, programs=4),
        product(128, 64, warps=4, stages=5, programs=2),
        product(128, 64, warps=4, stages=3, programs=4),
        product(128, 128, warps=4, stages=3, programs=2),
        product(128, 128, warps=8, stages=3, programs=2),
    ),
    32: (
        product(64, 128, warps=4, stages=4, programs=2),
        product(64, 128, warps=4, stages=3, programs=3),
        product(64, 64, warps=4, stages=4, programs=4),
        product(128, 64, warps=4, stages=5, programs=2),
        product(128, 128, warps=4, stages=2, programs=2),
        product(128, 128, warps=8, stages=2, programs=2),
    ),
    64: (
        product(128, 64, warps=4, stages=4, programs=2),
        product(128, 64, warps=8, stages=6, programs=1),
        product(64, 64, warps=4, stages=4, programs=3),
        product(64, 128, warps=4, stages=3, programs=2),
        product(128, 128, warps=8, stages=2, programs=2),
        product(256, 64, warps=8, stages=5, programs=1),
    ),
    128: (
        product(64, 64, warps=4, stages=4, programs=2),
        product(64, 64, warps=4, stages=3, programs=3),
        product(128, 64, warps=4, stages=3, programs=2),
        product(128, 64, warps=8, stages=6, programs=1),
        product(128, 128, warps=8, stages=3, programs=1),
        product(64, 128, warps=4, stages=2, programs=2),
    ),
}
GROUP_TILES = (1, 4)


def first(block_m: int) -> Tuning:
    """Where the search among tiles of `block_m` rows starts; KeyError if there is none."""
    return Tuning(
        block_m=block_m,
        group_tiles=4 if block_m == max(GATE_UP) else 1,
        gate_up=GATE_UP[block_m][0],
        down=DOWN[block_m][0],
    )
