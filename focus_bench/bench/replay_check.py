"""Whether a decode trace that is to be replayed holds every request, asked before anything runs.

Knows which requests a trace holds; what is taken from it is decoding's matter.
"""

from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.workload import Workload
from focus_bench.decoding.rules import StepRules


def check_replay(point: PointConfig, workload: Workload) -> None:
    """Raise UsageError for a point that replays a trace exactly which lacks some of its requests.

    (An approximate replay lends those the counts of others.)
    """
    if point.acceptance.kind != "replay":
        return
    rules = StepRules.for_point(point)
    if rules.replay is None or rules.replay.approximate:
        return
    traced = set(rules.replay.trace.request_id.tolist())
    wanted = {request.request_id for request in workload.requests}
    if not wanted <= traced:
        raise UsageError(
            "--num-prompts",
            len(wanted),
            f"at most {len(traced)}, the requests that {point.acceptance.path} holds",
        )
