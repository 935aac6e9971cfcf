"""Files of fixed points: what they name, and what they must not."""

import dataclasses
import json
from pathlib import Path

import pytest
from report_samples import make_point

from focus_bench.core.errors import UsageError
from focus_bench.report.points_file import choose, read_points


def write(path: Path, *entries: object) -> Path:
    path.write_text(json.dumps({"points": list(entries)}))
    return path


def test_entries_name_points_by_their_settings(tmp_path: Path) -> None:
    focus, baseline = make_point("focus"), make_point("baseline")
    other = dataclasses.replace(focus, seed=7)
    file = write(
        tmp_path / "points.json",
        {"decode.policy": "focus", "seed": 7, "workload.request_rate": "inf"},
        {"decode.policy": "baseline"},
        {"decode.policy": "ideal", "scheduler.batch_size": 3},
    )
    chosen = choose(read_points(file), [focus, other, baseline])
    assert chosen.points == (other, baseline)
    assert [entry.label for entry in chosen.absent] == [
        "decode.policy ideal, scheduler.batch_size 3"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "readable JSON"),
        ("[]", 'an object with a list "points"'),
        ('{"points": []}', 'an object with a list "points"'),
        ('{"points": [3]}', "point 1: 3"),
        ('{"points": [{"decode.policy": "focus"}, {"policy": "focus"}]}', "point 2: 'policy'"),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"bad\.json") as raised:
        read_points(file)
    assert message in str(raised.value)


def test_a_file_that_cannot_be_read_is_told_in_words_and_named_once(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none.json", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(UsageError) as raised:
            read_points(path)
        assert str(raised.value) == (
            f"--points: '{path}' is not usable; allowed: a readable JSON file ({reason})"
        )


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--points"):
        read_points(tmp_path / "none.json")
