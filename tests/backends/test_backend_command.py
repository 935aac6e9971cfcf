"""focus-bench run --backend: files, labels, refusals and exit codes."""

import asyncio
import csv
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from fake_lmdeploy import FakeModule
from openai_server import Exchange, GoodServer, Received, piece, running

from focus_bench.cli.main import main
from focus_bench.core.config import POLICY_NAMES

KEY = "sk-a-key-of-tests"
BASE = ["run", "--backend", "openai", "--dataset", "synthetic", "--num-prompts", "6"]
BASE += ["--max-new-tokens", "8", "--num-warmups", "0"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FOCUS_BENCH_API_KEY", KEY)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def everything_in(folder: Path) -> str:
    return "".join(p.read_text() for p in sorted(folder.rglob("*")) if p.is_file())


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_an_endpoint_gives_the_files_of_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    server = GoodServer(gap_s=0.002)
    with running(server) as url:
        common = [*BASE, "--base-url", url.removesuffix("/v1"), "--output-dir", str(folder)]
        assert main([*common, "--batch-size", "2,3", "--num-runs", "2"]) == 0
        out, err = capsys.readouterr()
        asked = len(server.completions)
        assert main([*common, "--batch-size", "2,3", "--num-runs", "2", "--resume"]) == 0
        assert len(server.completions) == asked == 24
        assert "finished before, skipped" in capsys.readouterr().err
        assert server.most_in_flight == 3
        # A second policy is another server's: it is named, and stands in the same folder.
        assert main([*common, "--policy", "focus", "--batch-size", "2", "--resume"]) == 0
    assert "outside engine (openai endpoint" in out
    assert f"measured on outside engine at {url}" in out
    assert "predicted" not in out + err
    summary = rows(folder / "summary.csv")
    assert [(r["policy"], r["batch_size"]) for r in summary] == [
        ("baseline", "2"),
        ("baseline", "3"),
        ("focus", "2"),
    ]
    for row in summary:
        assert row["source"] == "measured"
        assert row["backend"] == "openai"
        assert row["labels"].startswith("outside engine (openai endpoint")
        assert row["hardware"] == f"outside engine at {url}"
        assert (row["completed"], row["failed"], row["total_output_tokens"]) == ("6", "0", "36")
        assert float(row["output_throughput"]) > 0
        assert float(row["ttft_p50_ms"]) > 1
        assert row["group_gap_count"] == "12"
        unknown = ("tokens_per_step", "processed_per_decoded", "retained_fraction", "num_pages")
        unknown += ("preemptions", "steps_per_block_mean", "acceptance", "page_size_tokens")
        assert [row[name] for name in unknown] == [""] * len(unknown)
    requests = rows(folder / "requests.csv")
    assert len(requests) == 18
    assert {r["decode_steps"] for r in requests} == {""}
    assert {r["hardware"] for r in requests} == {f"outside engine at {url}"}
    results = json.loads((folder / "results.json").read_text())
    assert all(p["labels"].startswith("outside engine") for p in results["points"])
    assert len(rows(folder / "steps.csv")) == 0
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["machine"]["device"] == f"outside engine at {url}"
    assert {r.headers.get("authorization") for r in server.received} == {f"Bearer {KEY}"}
    assert KEY not in everything_in(folder) + out + err
    assert main(["report", str(folder), "--detail"]) == 0
    assert "pages                  - of - at most" in capsys.readouterr().out
    line = error_line(["compare", str(folder)], capsys)
    assert f"result folder: '{folder}'" in line
    assert "a decode trace, which no outside engine keeps" in line


def test_failed_requests_are_named_on_screen_and_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    seen = 0

    async def handler(request: Received, out: Exchange) -> None:
        nonlocal seen
        if request.body.get("max_tokens") != 1:
            seen += request.method == "POST"
        if seen == 2:
            seen += 1
            await out.whole("500 Internal Server Error", f"key was {KEY}".encode())
        else:
            await GoodServer()(request, out)

    with running(handler) as url:
        arguments = [*BASE, "--base-url", url, "--batch-size", "1", "--output-dir", str(folder)]
        assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert "1 x error: http 500 Internal Server Error: key was [key]" in " ".join(out.split())
    assert "1 of 6 requests failed: 1" in err
    (row,) = rows(folder / "summary.csv")
    assert row["failed_by_reason"] == "error: http 500 Internal Server Error: key was [key]=1"
    assert row["total_output_tokens"] == "30"
    assert KEY not in everything_in(folder) + out + err


def test_a_rate_is_reached_and_said(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with running(GoodServer()) as url:
        arguments = [*BASE, "--base-url", url, "--batch-size", "64", "--output-dir", str(folder)]
        assert main([*arguments, "--request-rate", "50", "--quiet"]) == 0
    (row,) = rows(folder / "summary.csv")
    assert row["requested_request_rate"] == "50.0"
    arrivals = sorted(float(r["arrival_s"]) for r in rows(folder / "requests.csv"))
    reached = 5 / (arrivals[-1] - arrivals[0])
    assert 0.5 * reached < float(row["reached_request_rate"]) <= 1.5 * reached


def test_a_prediction_is_made_for_a_profile_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    profile = Path(__file__).parents[2] / "focus_bench" / "profiles" / "cpu.json"
    with running(GoodServer()) as url:
        arguments = [*BASE, "--base-url", url, "--batch-size", "4", "--output-dir", str(folder)]
        assert main([*arguments, "--profile", str(profile)]) == 0
    measured, predicted = rows(folder / "summary.csv")
    assert (measured["source"], predicted["source"]) == ("measured", "predicted")
    assert measured["labels"].startswith("outside engine")
    assert "outside engine" not in predicted["labels"]
    assert float(predicted["output_throughput"]) > 0
    assert predicted["acceptance"].startswith("synthetic:focus-tiny")
    assert "tok/s; predicted" in capsys.readouterr().err


def test_a_dry_run_asks_the_endpoint_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    server = GoodServer()
    with running(server) as url:
        assert main([*BASE, "--base-url", url, "--dry-run"]) == 0
    assert server.received == []
    assert f"measured on outside engine at {url}" in capsys.readouterr().out


def test_an_endpoint_that_is_not_there_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with running(GoodServer()) as url:
        pass
    folder = tmp_path / "out"
    line = error_line([*BASE, "--base-url", url, "--output-dir", str(folder)], capsys)
    assert f"--base-url: '{url}'" in line
    assert "cannot connect" in line
    assert "[Errno" not in line
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "vllm"], "--backend: 'vllm' .* engine, openai, lmdeploy"),
        (["--base-url", ""], "--base-url: ''"),
        (["--base-url", "localhost:8000"], "--base-url: 'localhost:8000'"),
        (["--base-url", "http://h:port/v1"], "--base-url: 'http://h:port/v1' .* PORT a number"),
        (
            ["--base-url", f"http://me:{KEY}@h/v1"],
            r"--base-url: 'http://\*\*\*@h/v1' .* without user name, password",
        ),
        (
            ["--base-url", f"http://h/v1?key={KEY}"],
            r"--base-url: 'http://h/v1\?\*\*\*' .* without user name, password",
        ),
        (["--base-url", f"http://me:/{KEY}@h/v1"], r"--base-url: 'http://\*\*\*@h/v1'"),
        (["--base-url", f"http://me:a?{KEY}@h/v1"], r"--base-url: 'http://\*\*\*@h/v1'"),
        (["--base-url", f"me:{KEY}@h/v1"], r"--base-url: '\*\*\*@h/v1'"),
        (["--endpoint", "generate"], "--endpoint: 'generate' .* completions, chat"),
        (["--prompt-format", "ids"], "--prompt-format: 'ids'"),
        (["--request-timeout", "0"], "--request-timeout: 0"),
        (["--policy", "ideal"], "--policy: 'ideal' .* \\(with --backend openai"),
        (["--policy", "focus-fixed"], "--policy: 'focus-fixed'"),
        (["--policy", "baseline,focus"], "--policy: 'baseline,focus' .* one value"),
        (["--threshold", "0.8,0.9"], "--threshold: '0.8,0.9' .* one value"),
        (["--model", "focus-tiny,sdar-8b"], "--model: .* one with --backend openai"),
        (["--acceptance", "synthetic:3"], "--acceptance: 'synthetic:3' .* --profile"),
        (["--importance", "synthetic"], "--importance: 'synthetic'"),
        (["--device", "cpu"], "--device: 'cpu' .* default with --backend openai"),
        (["--dtype", "bfloat16"], "--dtype: 'bfloat16'"),
        (["--page-size", "32"], "--page-size: 32"),
        (["--steps-per-round", "2"], "--steps-per-round: 2"),
        (["--scheduler", "static"], "--scheduler: 'static'"),
        (["--engine-option", "tp=2"], "--engine-option: .* only --backend lmdeploy"),
        (["--prompt-format", "tokens", "--endpoint", "chat"], "text with --endpoint chat"),
    ],
)
def test_what_an_endpoint_cannot_follow_is_refused_by_name(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--base-url", "http://127.0.0.1:1/v1"]
    line = error_line([*BASE, *where, *arguments], capsys)
    assert re.search(words, line), line
    assert KEY not in line


def test_flags_of_outside_engines_are_refused_for_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in (["--base-url", "http://x/v1"], ["--engine-option", "tp=2"]):
        line = error_line(["run", *arguments], capsys)
        assert f"{arguments[0]}: " in line
        assert "only --backend" in line


def test_every_policy_is_either_stated_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    stated = []
    for policy in POLICY_NAMES:
        arguments = [*BASE, "--base-url", "http://h/v1", "--dry-run", "--policy", policy]
        code = main(arguments)
        assert code in (0, 2)
        stated += [policy] if code == 0 else []
        assert (policy in capsys.readouterr().err) == (code == 2)
    assert stated == ["baseline", "delayed-cache", "delayed-cache-neighbor", "focus"]


def test_lmdeploy_gives_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = FakeModule()
    monkeypatch.setitem(sys.modules, "lmdeploy", module)
    folder = tmp_path / "out"
    arguments = [*BASE, "--output-dir", str(folder)]
    arguments[arguments.index("openai")] = "lmdeploy"
    assert main([*arguments, "--batch-size", "4,8", "--threshold", "0.8,0.9"]) == 0
    out, _ = capsys.readouterr()
    assert "outside engine (lmdeploy)" in out
    summary = rows(folder / "summary.csv")
    assert [(r["batch_size"], r["threshold"]) for r in summary] == [
        ("4", "0.8"),
        ("4", "0.9"),
        ("8", "0.8"),
        ("8", "0.9"),
    ]
    assert {r["hardware"].partition(" on ")[0] for r in summary} == {
        "outside engine lmdeploy 0.11.0"
    }
    assert {r["queue_count"] for r in summary} == {"0"}
    assert all(p.is_closed for p in module.pipelines)
    assert len(module.pipelines) == 4


def test_lmdeploy_refuses_what_it_does_not_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lmdeploy", FakeModule())
    arguments = [*BASE]
    arguments[arguments.index("openai")] = "lmdeploy"
    assert "--policy: 'focus'" in error_line([*arguments, "--policy", "focus"], capsys)
    several = [*arguments, "--policy", "baseline,focus", "--engine-option", "enable_focus=true"]
    assert "one policy with --engine-option" in error_line(several, capsys)
    unknown = [*arguments, "--policy", "focus", "--engine-option", "enable_focus=true"]
    assert "which has no enable_focus" in error_line(unknown, capsys)
    assert "--threads: 2" in error_line([*arguments, "--threads", "2"], capsys)


def test_ctrl_c_ends_a_run_that_waits_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_s = 0.0

    async def handler(request: Received, out: Exchange) -> None:
        nonlocal begin_s
        if request.method == "GET" or request.body["max_tokens"] == 1:
            await GoodServer()(request, out)
            return
        await out.head()
        await out.event(piece("a"))
        begin_s = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    with running(handler) as url:
        arguments = [*BASE, "--base-url", url, "--batch-size", "1"]
        code = main([*arguments, "--output-dir", str(tmp_path / "out")])
        took_s = time.perf_counter() - begin_s
    assert code == 130
    assert took_s < 2.0
    assert "0 of 1 points are finished" in capsys.readouterr().err
