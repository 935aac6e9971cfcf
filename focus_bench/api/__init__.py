"""The Python interface: measure with an Engine, predict with simulate, set both side by side.

Engine and simulator load on first use, so importing this package needs neither torch nor SimPy.

    from focus_bench.api import Engine, load_workload, make_point, simulate

    point = make_point(policy="focus", batch_size=32, dataset="sharegpt")
    workload = load_workload(point)
    measured = Engine.for_point(point).run(point, workload)
    predicted = simulate(point, workload, hardware="h200")
"""

from focus_bench.api.engine import Completion, Engine
from focus_bench.api.points import load_workload, make_point
from focus_bench.api.prediction import compare, simulate
from focus_bench.api.profiles import calibrate

__all__ = [
    "Completion",
    "Engine",
    "calibrate",
    "compare",
    "load_workload",
    "make_point",
    "simulate",
]
