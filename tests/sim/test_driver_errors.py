"""Bad input met by the simulated engine reaches the caller as it was raised."""

from types import SimpleNamespace
from typing import Any

import pytest

from focus_bench.core.errors import CapacityError
from focus_bench.sim.driver import run_simulated


def test_a_usage_error_inside_the_simulation_is_the_callers() -> None:
    def execute(plan: object) -> None:
        raise CapacityError("--num-pages", 3, "5 or more")

    loop: Any = SimpleNamespace(
        is_done=False,
        begin_step=lambda now: "plan",
        executor=SimpleNamespace(execute=execute),
    )
    with pytest.raises(CapacityError, match="--num-pages: 3 is not usable; allowed: 5 or more"):
        run_simulated(loop)
