"""Curves as functions: the fast table is the grid, missing corners are filled, tiles are kept."""

import numpy as np
import pytest

from focus_bench.core.op_curves import OpCurve
from focus_bench.sim.curves import Grid, SequencesTable


def curve(points: np.ndarray, seconds: np.ndarray, *axes: str) -> OpCurve:
    return OpCurve(
        name="attention_decode",
        axes=axes,
        points=points.astype(np.float64),
        seconds=seconds,
        spread=np.zeros(len(seconds)),
        held_out_p50=None,
        held_out_max=None,
    )


def grid_of_three() -> Grid:
    rng = np.random.default_rng(0)
    axes = ([1, 4, 16], [1, 8, 32], [64, 256, 1024, 4096])
    mesh = np.meshgrid(*axes, indexing="ij")
    points = np.stack([m.ravel() for m in mesh], axis=1)
    seconds = rng.uniform(1.0, 2.0, size=len(points))
    return Grid.of(curve(points, seconds, "sequences", "queries", "context"))


@pytest.mark.parametrize("sequences", [1.0, 3.0, 4.0, 16.0])
def test_the_table_of_sequences_is_the_grid(sequences: float) -> None:
    grid = grid_of_three()
    rng = np.random.default_rng(1)
    q = np.append(rng.uniform(1, 32, size=50), [1.0, 8.0, 32.0])
    k = np.append(rng.uniform(64, 4096, size=50), [64.0, 1024.0, 4096.0])
    seconds, inside, _ = SequencesTable(grid, sequences).values(q, k)
    expected, known, _ = grid.at((np.full(len(q), sequences), q, k))
    np.testing.assert_allclose(seconds, expected, rtol=1e-12)
    assert inside == known.mean() == 1.0


def test_measured_points_come_back_and_values_stay_between_neighbours() -> None:
    rows = np.array([[64], [128], [129], [256]])
    grid = Grid.of(curve(rows, np.array([1.0, 1.1, 2.0, 2.1]), "rows"))
    at = np.array([64.0, 100.0, 128.0, 128.5, 129.0, 200.0, 256.0])
    seconds, known, dense = grid.at((at,))
    np.testing.assert_allclose(seconds[[0, 2, 4, 6]], [1.0, 1.1, 2.0, 2.1])
    assert seconds[3] == pytest.approx(1.55)  # the step of a tile is as steep as it was measured
    assert (np.diff(seconds) > 0).all()
    assert known.all()
    assert dense.all()
    far = Grid.of(curve(rows[[0, 3]], np.array([1.0, 2.1]), "rows"))
    assert not far.at((np.array([100.0]),))[2].any()
    assert far.at((np.array([64.0]),))[2].all()


@pytest.mark.parametrize(("grows", "expected"), [(True, 6.0), (False, 3.0)])
def test_a_missing_corner_grows_with_its_coordinate_or_stays(grows: bool, expected: float) -> None:
    points = np.array([[1, 10], [1, 20], [2, 10]])
    grid = Grid.of(curve(points, np.array([1.0, 2.0, 3.0]), "sequences", "context"), grows=grows)
    seconds, known, _ = grid.at((np.array([2.0]), np.array([20.0])))
    assert seconds[0] == expected
    assert not known.any()
