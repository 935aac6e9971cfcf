"""Causes of errors: each one alone is found as itself, and together they make the ratio."""

import dataclasses

import numpy as np
import pytest

from focus_bench.report.attribution import RunTotals, attribute, busy_seconds

MEASURED = RunTotals(duration_s=10.0, busy_s=9.0, modelled_s=8.0, sequence_steps=4000, tokens=8000)


def test_equal_runs_have_no_causes() -> None:
    found = attribute(MEASURED, MEASURED)
    assert (found.step_cost, found.steps_per_block, found.scheduling) == (1.0, 1.0, 1.0)
    assert found.measured_steps_s == found.predicted_steps_s == 9.0


def test_costs_alone_are_the_cost_of_steps() -> None:
    slower = dataclasses.replace(MEASURED, duration_s=20.0, busy_s=18.0)
    found = attribute(MEASURED, slower)
    assert (found.step_cost, found.steps_per_block, found.scheduling) == (0.5, 1.0, 1.0)
    assert (found.measured_steps_s, found.predicted_steps_s) == (18.0, 9.0)


def test_more_steps_for_a_token_are_steps_per_block() -> None:
    more = dataclasses.replace(
        MEASURED, duration_s=20.0, busy_s=18.0, modelled_s=16.0, sequence_steps=8000
    )
    found = attribute(MEASURED, more)
    assert (found.step_cost, found.steps_per_block, found.scheduling) == (1.0, 0.5, 1.0)
    assert (found.measured_steps_s, found.predicted_steps_s) == (9.0, 18.0)


def test_idle_time_and_emptier_steps_are_scheduling() -> None:
    idle = dataclasses.replace(MEASURED, duration_s=20.0)
    emptier = dataclasses.replace(MEASURED, duration_s=20.0, busy_s=18.0, modelled_s=16.0)
    for predicted in (idle, emptier):
        found = attribute(MEASURED, predicted)
        assert (found.step_cost, found.steps_per_block, found.scheduling) == (1.0, 1.0, 0.5)


def test_the_factors_make_the_ratio_of_throughputs() -> None:
    predicted = RunTotals(
        duration_s=13.0, busy_s=9.5, modelled_s=11.0, sequence_steps=5100, tokens=7700
    )
    found = attribute(MEASURED, predicted)
    assert found.total == pytest.approx((7700 / 13.0) / (8000 / 10.0))


@pytest.mark.parametrize("name", ["tokens", "sequence_steps", "busy_s", "modelled_s"])
def test_a_run_of_nothing_has_no_causes(name: str) -> None:
    assert attribute(dataclasses.replace(MEASURED, **{name: 0}), MEASURED) is None


def test_time_without_any_request_is_not_busy() -> None:
    """Two overlapping requests, one within the first, and a late one after a pause."""
    served = np.array([[5.0, 6.0], [0.0, 2.0], [1.0, 3.0], [0.5, 1.5]])
    assert busy_seconds(served) == pytest.approx(4.0)
    assert busy_seconds(np.zeros((0, 2))) == 0.0
