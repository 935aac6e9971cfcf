"""focus-bench simulate at the command level: folders, resume, failures, and no torch."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from focus_bench.api.prediction import Target
from focus_bench.cli.main import main
from focus_bench.core.intervals import intervals_in
from focus_bench.report.folder import load_folder

SMALL = ["simulate", "--gpu", "h200", "--dataset", "synthetic"]
SMALL += ["--num-prompts", "4", "--max-new-tokens", "16"]
ONE = [*SMALL, "--policy", "focus", "--batch-size", "2"]


def rows(folder: Path) -> list[dict[str, str]]:
    """summary.csv as dictionaries."""
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_default_points_and_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main([*SMALL, "--output-dir", str(folder), "--metadata", "why=test"]) == 0
    out, err = capsys.readouterr()
    found = [(row["policy"], row["batch_size"]) for row in rows(folder)]
    assert found == [
        (policy, batch)
        for batch in ("8", "32")
        for policy in ("baseline", "delayed-cache-neighbor", "focus")
    ]
    assert {row["source"] for row in rows(folder)} == {"predicted"}
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["metadata"] == {"why": "test"}
    assert len(manifest["points"]) == 6
    for name in ("requests.csv", "steps.csv", "results.json"):
        assert (folder / name).stat().st_size > 0
    assert "delayed-cache-neighbor" in out
    for label in ("synthetic acceptance", "synthetic importance", "synthetic data", "carried over"):
        assert label in " ".join(out.split())
        assert all(label in row["labels"] + row["notes"] for row in rows(folder))
    assert "[6/6]" in err
    assert "\x1b" not in out + err
    assert "\r" not in out + err
    assert err.count("\n") < 20


def test_rounds_take_more_steps_for_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for rounds in ("1", "8"):
        folder = tmp_path / rounds
        arguments = [*SMALL, "--policy", "baseline", "--batch-size", "2"]
        arguments += ["--steps-per-round", rounds, "--output-dir", str(folder)]
        assert main(arguments) == 0
        assert ("steps per round 8" in capsys.readouterr().out) == (rounds == "8")
        with (folder / "steps.csv").open(newline="") as file:
            num_steps = len(list(csv.DictReader(file)))
        (row,) = rows(folder)
        found.append((row["steps_per_round"], row["total_output_tokens"], num_steps))
    (_, tokens, few), (_, same_tokens, many) = found
    assert [entry[0] for entry in found] == ["1", "8"]
    assert tokens == same_tokens
    assert many > few


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ONE, "--quiet", "--output-dir", str(tmp_path / "out")]) == 0
    assert capsys.readouterr() == ("", "")


def test_dry_run_prints_the_points_and_runs_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = [*SMALL, "--alpha", "1.2,1.5", "--batch-size", "8"]
    assert main([*arguments, "--dry-run", "--output-dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "4 points" in out  # alpha is no axis of baseline and delayed-cache-neighbor
    assert not folder.exists()


def test_resume_runs_what_is_missing_and_duplicates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main([*SMALL, "--batch-size", "8", "--output-dir", str(folder)]) == 0
    first = (folder / "summary.csv").read_text()
    again = [*SMALL, "--batch-size", "8,4", "--output-dir", str(folder)]
    assert main(again) == 2  # a folder with results is not overwritten
    assert "--resume" in capsys.readouterr().err
    assert main([*again, "--resume", "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert (plan.count("finished"), plan.count("to do")) == (3, 3)
    assert main([*again, "--resume"]) == 0
    assert capsys.readouterr().err.count("skipped") == 3
    whole = (folder / "summary.csv").read_text()
    assert whole.startswith(first)
    assert len(rows(folder)) == 6
    assert len({row["point_hash"] for row in rows(folder)}) == 6
    assert main([*again, "--resume"]) == 0
    assert (folder / "summary.csv").read_text() == whole


def test_resume_into_a_folder_of_another_sweep_says_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    where = ["--output-dir", str(folder), "--resume"]
    assert main([*SMALL, "--batch-size", "8", *where]) == 0
    assert "not of this command" not in capsys.readouterr().err
    assert main([*SMALL, "--batch-size", "8,4", *where]) == 0  # all of the folder is asked for
    assert "not of this command" not in capsys.readouterr().err
    assert main([*ONE, "--batch-size", "4", *where]) == 0
    line = f"5 of 6 points in {folder} are not of this command: kept"
    assert capsys.readouterr().err.splitlines().count(line) == 1
    assert len(rows(folder)) == 6


def test_hardware_is_an_axis(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = [*ONE, "--quiet", "--output-dir", str(folder)]
    arguments[arguments.index("h200")] = "h200,a100-sxm4-80g"
    assert main(arguments) == 0
    fast, slow = (float(row["output_throughput"]) for row in rows(folder))
    assert fast > slow


def test_requests_that_never_fit_fail_by_name_and_the_others_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ten prompts five need more pages than there are."""
    lengths = [40, 400] * 5
    data = tmp_path / "mixed.jsonl"
    lines = [
        json.dumps(
            {
                "conversations": [
                    {"from": "human", "value": "x" * length},
                    {"from": "gpt", "value": "y" * 20},
                ]
            }
        )
        for length in lengths
    ]
    data.write_text("\n".join(lines))
    folder = tmp_path / "out"
    arguments = ["simulate", "--gpu", "h200", "--dataset-path", str(data), "--num-prompts", "10"]
    arguments += ["--max-new-tokens", "16", "--policy", "focus", "--batch-size", "4"]
    arguments += ["--num-pages", "4", "--page-size", "32", "--output-dir", str(folder)]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert re.search(r"5 of 10 requests failed: \d+(, \d+){4}; 5 x .*the whole pool.*\n", err)
    assert "the whole pool" in out
    (row,) = rows(folder)
    assert (row["completed"], row["failed"]) == ("5", "5")
    assert row["total_output_tokens"] == str(5 * 16)
    expected = 5 * 16 / float(row["duration_s"])
    assert float(row["output_throughput"]) == pytest.approx(expected)


def test_a_point_that_cannot_run_is_recorded_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights of an 8 B model do not fit into a hundredth of an H200."""
    folder = tmp_path / "out"
    arguments = [*ONE, "--model", "sdar-8b,dummy-tiny", "--output-dir", str(folder)]
    arguments += ["--gpu-memory-utilization", "0.01"]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert "bytes wanted" in err
    assert "Traceback" not in err
    assert re.search(r"failed points\npredicted focus, batch 2, B 32, sdar-8b", out)
    finished, failed = rows(folder)
    assert (finished["model"], finished["state"]) == ("dummy-tiny", "finished")
    assert (failed["model"], failed["state"]) == ("sdar-8b", "failed")
    assert "bytes had" in failed["failure"]
    assert failed["output_throughput"] == ""
    written = json.loads((folder / "results.json").read_text())
    assert [point["model"] for point in written["points"]] == ["dummy-tiny"]
    assert [point["failure"] for point in written["failed_points"]] == [failed["failure"]]
    arguments[-1] = "0.9"  # other points, for which there is room
    assert main([*arguments, "--resume"]) == 0


def test_an_interruption_keeps_finished_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    predict = Target.predict

    def interrupted(self, point, *arguments, **options):  # type: ignore[no-untyped-def]
        if point.decode.policy == "focus":
            raise KeyboardInterrupt
        return predict(self, point, *arguments, **options)

    monkeypatch.setattr(Target, "predict", interrupted)
    folder = tmp_path / "out"
    assert main([*SMALL, "--batch-size", "8", "--output-dir", str(folder)]) == 130
    out, err = capsys.readouterr()
    assert "interrupted" in err
    assert "delayed-cache-neighbor" in out
    policies = [result.point.decode.policy for result in load_folder(folder).results]
    assert policies == ["baseline", "delayed-cache-neighbor"]


def test_a_rate_that_cannot_be_kept_shows_the_rate_that_was_reached(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = [*ONE, "--quiet", "--request-rate", "1000000", "--output-dir", str(folder)]
    assert main(arguments) == 0
    (row,) = rows(folder)
    assert float(row["requested_request_rate"]) == 1e6
    assert 0 < float(row["reached_request_rate"]) < 1e6


RUN_WITHOUT_TORCH = """
import sys
from focus_bench.api.prediction import Target
from focus_bench.cli.main import main
code = main(sys.argv[1:])
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "triton"}))
sys.exit(code)
"""


def test_no_command_but_those_that_run_a_model_loads_torch(tmp_path: Path) -> None:
    """Also: the C locale, in which Python would write ASCII, and a pipe get plain whole lines."""
    data = tmp_path / "data" / "many.json.gz"
    data.parent.mkdir()
    import gzip

    texts = ["Привет, мир", "你好,世界", "emoji 🎉", "plain"]
    conversations = [
        {"conversations": [{"from": "human", "value": t}, {"from": "gpt", "value": t * 3}]}
        for t in texts
    ]
    data.write_bytes(gzip.compress(json.dumps(conversations, ensure_ascii=False).encode()))
    folder = tmp_path / "Ergebnis-ü"
    arguments = ["simulate", "--gpu", "h200", "--dataset-path", str(data.parent)]
    arguments += ["--num-prompts", "4", "--max-new-tokens", "8", "--output-dir", str(folder)]
    arguments += ["--metadata", "Ort=Köln"]
    for command in (arguments, ["report", str(folder)]):
        done = subprocess.run(
            [sys.executable, "-c", RUN_WITHOUT_TORCH, *command],
            cwd=tmp_path,
            env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(b"[]\n")
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"\r" not in done.stdout + done.stderr
        assert b"focus" in done.stdout
    assert json.loads((folder / "run.json").read_bytes())["metadata"] == {"Ort": "Köln"}


def test_simulate_says_where_runs_would_lie_and_what_costs_rest_on(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["simulate", "--dataset", "synthetic", "--num-prompts", "4", "--max-new-tokens", "16"]
    flags += ["--model", "dummy-tiny", "--gpu", "cpu", "--policy", "focus", "--batch-size", "4"]
    assert main([*flags, "--output-dir", str(tmp_path / "with")]) == 0
    out = capsys.readouterr().out
    assert "where 90 % of runs would lie" in out
    assert "calibrated" in out
    (result,) = load_folder(tmp_path / "with").results
    intervals = intervals_in(result.settings)
    throughput = result.metrics.output_throughput
    assert intervals["output_throughput"].low < throughput < intervals["output_throughput"].high
    assert main([*flags, "--no-interval", "--output-dir", str(tmp_path / "without")]) == 0
    assert "where 90 % of runs would lie" not in capsys.readouterr().out
    (plain,) = load_folder(tmp_path / "without").results
    assert plain.metrics == result.metrics
    assert not intervals_in(plain.settings)
    assert plain.settings["domain"] == "calibrated"


def test_quiet_names_the_reason_of_failed_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*ONE, "--num-pages", "1", "--quiet", "--output-dir", str(tmp_path / "out")]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"1 of 4 requests failed: 1; 1 x .*the whole pool", err)
    assert err.count("\n") == 1


def test_importance_is_synthetic_beside_synthetic_acceptance_for_a_trained_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = [*ONE, "--model", "focus-tiny", "--acceptance", "synthetic:2.13"]
    assert main([*arguments, "--output-dir", str(folder)]) == 0, capsys.readouterr().err
    (row,) = rows(folder)
    assert "synthetic importance" in row["labels"]
