"""The throughput parts of focus-bench paper: files, labels, what is shared, what is refused."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from focus_bench.cli.main import main
from focus_bench.core.records import RunRecord
from focus_bench.report.folder import ResultFolder, load_folder
from focus_bench.report.manifest import new_manifest

FEW = ["--num-prompts", "3", "--no-plots"]
EAGER = ["fig6", "--host-profile", "lmdeploy-eager"]


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def test_parts_share_their_points_and_a_second_call_simulates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "paper"
    arguments = ["--output-dir", str(folder), "--num-prompts", "3"]
    assert main(["paper", "fig8", "fig6", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "[12/12]" in err  # all of Fig. 6 is in Fig. 8
    words = " ".join(out.split())
    assert "published: arXiv 2601.23278, SDAR-8B-Chat" in words
    assert "synthetic acceptance (synthetic:sharegpt=2.351" in words
    assert "efficiencies carried over to NVIDIA A100-SXM4-80GB" in words
    for reason in ("gap, decoding", "gap, lengths", "gap, host"):
        assert reason in words
    rows = rows_of(folder / "fig6.csv")
    assert len(rows) == 8
    assert {row["source"] for row in rows} == {"predicted"}
    assert [r["published_output_throughput"] for r in rows if r["policy"] == "focus"] == [
        *("", "", ""),
        "2272.0",
    ]
    assert all("synthetic acceptance" in row["notes"] for row in rows)
    for kind in ("png", "svg"):
        assert (folder / f"fig8.{kind}").stat().st_size > 0
    assert len(rows_of(folder / "predicted" / "summary.csv")) == 12
    assert main(["paper", "fig6", "--resume", *arguments]) == 0
    assert capsys.readouterr().err.count("skipped") == 8
    assert main(["report", str(folder / "predicted")]) == 0
    assert "sdar-8b" in capsys.readouterr().out
    assert main(["report", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"allowed: a folder with a run.json, such as {folder / 'predicted'}")


def test_the_older_name_of_num_prompts_still_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("--num-prompts", "--num-requests"):
        assert main(["paper", "fig6", name, "0"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "--num-prompts: 0" in line
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["paper", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--num-prompts" in out
    assert "--num-requests" not in out


def test_fast_dllm_beside_focus_in_its_own_engine_and_in_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "paper"
    arguments = ["--output-dir", str(folder), "--num-prompts", "3"]
    assert main(["paper", "fig18", "fig19", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "[16/16]" in err  # FOCUS is the same in both
    words = " ".join(out.split())
    assert "published: up to 8.35x" in words
    assert "published: up to 1.91x" in words
    theirs, ours = rows_of(folder / "fig18.csv"), rows_of(folder / "fig19.csv")
    assert [row["policy"] for row in theirs] == ["fast-dLLM (our model)", "focus"] * 4
    assert [row["policy"] for row in ours] == ["baseline", "fast-dLLM", "focus"] * 4
    for row in theirs[::2]:
        assert "our model of Fast-dLLM v2's own engine" in row["notes"]
        assert "unshifted" not in row["notes"]  # its own model
    for row in ours[1::3]:
        assert "unshifted (SDAR)" in row["notes"]
        assert "our model" not in row["notes"]
    assert theirs[1]["point_hash"] == ours[2]["point_hash"]
    for row in (*theirs, *ours):
        assert not row["published_output_throughput"]
        assert float(row["over_fast_dllm_v2"]) > 0
    assert "our model" in (folder / "fig18.svg").read_text()
    assert {row["model"] for row in rows_of(folder / "predicted" / "summary.csv")} == {
        "sdar-8b",
        "fast-dllm-v2-7b",
    }


def test_another_host_is_a_labelled_assumption_and_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for host in ("ours", "lmdeploy-eager"):
        folder = tmp_path / host
        arguments = ["--host-profile", host, "--output-dir", str(folder), *FEW]
        assert main(["paper", "table7", *arguments]) == 0
        words = " ".join(capsys.readouterr().out.split())
        assert ("an assumption (at least 36.6 ms a step" in words) == (host != "ours")
        rows = rows_of(folder / "table7.csv")
        found.append([float(row["output_throughput"]) for row in rows])
        assert rows[0]["hardware"] == "a100-sxm4-80g" + ("" if host == "ours" else f"+{host}")
        assert rows[0]["output_throughput_is"] == ("beside" if host == "ours" else "fitted")
    assert all(ours > eager for ours, eager in zip(*found, strict=True))


def test_a_measured_folder_of_the_same_gpu_stands_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first"
    arguments = ["--gpu", "h200", *FEW]
    assert main(["paper", "table5", *arguments, "--output-dir", str(first)]) == 0
    result = load_folder(first / "predicted").results[0]
    measured = tmp_path / "measured"
    nothing = RunRecord(
        source="measured",
        steps=(),
        requests=(),
        duration_s=0.0,
        step_fed_tokens=0,
        step_kept_tokens=0,
        steps_per_block=np.zeros(0, dtype=np.int64),
        group_gaps_s=np.zeros(0),
        block_latencies_s=np.zeros(0),
        num_pages=None,
    )
    with ResultFolder.create(measured, new_manifest((), command="run", seed=0)) as folder:
        for device in ("NVIDIA H200", "cpu"):
            changed = dataclasses.replace(result, source="measured", hardware=device)
            folder.add_point(changed, nothing)
    beside = ["--measured", str(measured), "--output-dir", str(tmp_path / "second")]
    assert main(["paper", "table5", *arguments, *beside]) == 0
    rows = rows_of(tmp_path / "second" / "table5.csv")
    assert [row["measured_on"] for row in rows] == ["NVIDIA H200", "", "", "", "", ""]
    assert rows[0]["measured_processed_per_decoded"] == rows[0]["processed_per_decoded"]
    capsys.readouterr()
    assert main(["paper", "table5", *FEW, "--measured", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_dry_run_lists_the_points_and_runs_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = ["--gpu", "h200,b200", "--dry-run", "--output-dir", str(folder), *FEW]
    assert main(["paper", "table5", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.count("6 points") == 2
    assert "predicted on b200" in out
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["fig6", "--model", "sdar-4b"],
            "--model: 'sdar-4b' is not usable; allowed: sdar-8b, llada",
        ),
        (["fig6", "--dataset", "gsm8k"], "--dataset: 'gsm8k'"),
        (["fig6", "--gpu", "v100"], "--gpu: 'v100'"),
        (["fig6", "--host-profile", "vllm"], "--host-profile: 'vllm'"),
        (["fig6", "--host-step-ms", "20"], "--host-step-ms: 20"),
        (["fig6", "--host-step-ms", "x"], "--host-step-ms: 'x'"),
        ([*EAGER, "--host-step-ms", "inf"], "--host-step-ms: inf is not usable; allowed: >= 0"),
        ([*EAGER, "--host-step-ms", "nan"], "--host-step-ms: nan is not usable; allowed: >= 0"),
        ([*EAGER, "--host-step-ms", "-1"], "--host-step-ms: -1.0 is not usable; allowed: >= 0"),
        (["fig6", "--dataset-path", "math"], "--dataset-path: 'math'"),
        (["fig6", "--num-prompts", "0"], "--num-prompts: 0"),
        (["fig6", "--resume"], "--resume: 'no --output-dir'"),
        (["table3", "fig6", "--model", "focus-tiny"], "--model: 'focus-tiny'"),
    ],
)
def test_usage_errors_are_one_line_and_nothing_runs(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", *arguments]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert len(err.splitlines()) == 1
    assert out == ""


def test_an_interrupted_paper_says_how_to_go_on_with_its_own_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "p"
    monkeypatch.setattr("focus_bench.cli.sweeps._run_all", interrupted)
    assert main(["paper", "fig6", "--num-prompts", "2", "--output-dir", str(folder)]) == 130
    err = capsys.readouterr().err
    assert err.endswith(f"repeat the command with --resume --output-dir {folder}\n")
