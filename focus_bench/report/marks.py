"""The marks of a finished evaluation's answers, read back from its result folder."""

import json
from pathlib import Path

from focus_bench.core.errors import UsageError
from focus_bench.report.locked_folder import POINTS_FOLDER
from focus_bench.report.quality_results import QualityPlan


def stored_marks(folder: Path, plan: QualityPlan) -> tuple[float, ...]:
    """1 for right, 0 for wrong, of each problem in order; empty where the plan has no answers.

    Raises UsageError for a file that is not whole.
    """
    files = sorted((folder / POINTS_FOLDER).glob(f"{plan.hash()}*.answers.jsonl"))
    if not files:
        return ()
    try:
        lines = files[0].read_text(encoding="utf-8").splitlines()
        return tuple(float(json.loads(line)["right"]) for line in lines)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("answers", str(files[0]), f"a whole JSONL file ({error})") from error
