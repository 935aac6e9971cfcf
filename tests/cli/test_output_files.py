"""Files that commands write: what may not be overwritten is refused before any work."""

import importlib.abc
import os
import sys
from pathlib import Path

import pytest

from focus_bench.cli.main import main

SIMULATE = ["simulate", "--gpu", "h200", "--num-prompts", "3", "--max-new-tokens", "8"]
RUN_OF_ONE = [*SIMULATE, "--dataset", "synthetic", "--policy", "baseline", "--batch-size", "2"]
LONG = "x" * 300
DEEP = "/".join(["y" * 99] * 50)


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a usage error, on stderr and with nothing on stdout."""
    capsys.readouterr()
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.startswith("focus-bench: error: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A result folder of one predicted point."""
    made = tmp_path / "results"
    assert main([*RUN_OF_ONE, "--quiet", "--output-dir", str(made)]) == 0
    return made


COMMANDS = [
    (["report", "{folder}"], "--html"),
    (["report", "{folder}"], "--perfetto"),
    (["report", "{folder}", "--against", "{folder}"], "--csv"),
    (["compare", "{folder}"], "--csv"),
    (["compare", "{folder}"], "--plot"),
    ([*RUN_OF_ONE, "--resume", "--output-dir", "{folder}"], "--perfetto"),
    (["run", "--resume", "--output-dir", "{folder}"], "--perfetto"),
    (["calibrate"], "--output"),
]


@pytest.mark.parametrize(("command", "flag"), COMMANDS)
def test_a_file_goes_only_where_a_new_or_plain_file_can_be(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str], flag: str
) -> None:
    before = sorted(folder.rglob("*"))
    summary = (folder / "summary.csv").read_bytes()
    filled = [part.format(folder=folder) for part in command]
    pipe = folder.parent / "pipe"
    os.mkfifo(pipe)
    targets = {
        "/dev/null": "a file, not a device",
        str(pipe): "a file, not a device",
        str(folder.parent / "absent" / "x.png"): "a file in a folder that exists",
        "/proc/x.png": "can be written to",
        str(folder.parent / LONG): "File name too long",
        str(folder.parent / DEEP): "File name too long",
        str(folder.parent / ("x" * 240 + ".png")): "File name too long",  # with a hash behind it
        str(folder.parent): "a file, not a folder",
    }
    if "{folder}" in command:
        targets |= dict.fromkeys(
            (str(folder), str(folder / "summary.csv"), str(folder / "new.png")), "a path outside"
        )
    for target, allowed in targets.items():
        line = usage_error([*filled, flag, target], capsys)
        assert f"{flag}: " in line
        assert allowed in line
    assert sorted(folder.rglob("*")) == before
    assert (folder / "summary.csv").read_bytes() == summary
    assert not (folder.parent / "absent").exists()


def test_folders_of_outputs_stay_out_of_result_folders(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = ["report", str(folder), "--figures"]
    for figures in (str(folder), str(folder / "points"), "/proc/x", str(folder.parent / LONG)):
        assert "--figures: " in usage_error([*report, figures], capsys)
    trace = ["run", "--output-dir", str(folder), "--decode-trace", str(folder / "traces")]
    assert "--decode-trace: " in usage_error(trace, capsys)
    for command in (["run"], SIMULATE, ["eval"], ["paper", "fig2"], ["train"]):
        line = usage_error([*command, "--output-dir", str(folder.parent / LONG)], capsys)
        assert "--output-dir: " in line


@pytest.mark.parametrize("name", [LONG, DEEP], ids=["long", "deep"])
@pytest.mark.parametrize(
    "command",
    [
        ["report"],
        ["report", "{folder}", "--against"],
        ["compare"],
        [*SIMULATE, "--model"],
        [*SIMULATE, "--dataset", "sharegpt", "--dataset-path"],
        [*SIMULATE, "--tokenizer"],
        ["simulate", "--gpu"],
        ["simulate", "--profile"],
        ["run", "--model"],
        ["run", "--profile"],
        ["calibrate", "--check"],
        ["eval", "--model"],
        ["generate", "--model"],
        ["train", "--output-dir", "{folder}/new", "--resume"],
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str], name: str
) -> None:
    filled = [part.format(folder=folder) for part in command]
    assert name[:60] in usage_error([*filled, name], capsys)


@pytest.mark.parametrize("command", [["doctor"], ["--help"], ["report", "{folder}"], RUN_OF_ONE])
def test_a_full_device_is_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    capsys.readouterr()
    monkeypatch.chdir(folder.parent)
    with open("/dev/full", "w", encoding="utf-8") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        code = main([part.format(folder=folder) for part in command])
    assert code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "focus-bench: error: standard output or a file: No space left on device"


def test_an_interruption_while_commands_are_loaded_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "focus_bench.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "focus_bench.cli.app", raising=False)
    monkeypatch.setattr("sys.meta_path", [Interrupting(), *sys.meta_path])
    assert main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "focus-bench: interrupted\n")


@pytest.mark.parametrize(
    "arguments", [["--metadata", "a=\udcff"], ["--metadata=a=\udcff"], ["--metadata", "\udcff=a"]]
)
def test_bytes_that_are_no_text_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert "--metadata: " in usage_error([*RUN_OF_ONE, *arguments], capsys)


def test_a_report_leaves_nothing_where_it_has_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, figures = folder.parent / "trace.json", folder.parent / "figures"
    other = folder.parent / "other"
    assert main([*RUN_OF_ONE, "--seed", "1", "--quiet", "--output-dir", str(other)]) == 0
    report = ["report", str(folder), "--figures", str(figures), "--against"]
    assert f"--against: '{other}" in usage_error([*report, str(other)], capsys)
    assert "'nowhere'" in usage_error([*report, "nowhere"], capsys)
    assert "--tolerance: -1" in usage_error([*report, str(folder), "--tolerance", "-1"], capsys)
    for file in (folder / "points").iterdir():
        file.unlink()
    line = usage_error(["report", str(folder), "--perfetto", str(trace)], capsys)
    assert f"--perfetto: '{trace}'" in line
    assert str(folder) in line.partition("allowed")[2]
    assert main(["report", str(folder), "--figures", str(figures)]) == 0
    assert f"figures: none to draw from {folder}\n" in capsys.readouterr().out
    assert not figures.exists()
    assert not trace.exists()
    assert "a folder with a run.json" in usage_error(["report", "/dev/null"], capsys)


@pytest.mark.parametrize("text", [None, "", '{"schema_version": 2, "po'])
def test_points_without_a_whole_run_json_are_kept_by_resume(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    manifest, (point,) = folder / "run.json", (folder / "points").glob("*.json")
    before = point.read_bytes()
    manifest.unlink()
    if text is not None:
        manifest.write_text(text)
    line = usage_error(["report", str(folder)], capsys)
    assert f"run.json, which is {'missing' if text is None else 'not'}; 1 of 1 files" in line
    assert "--resume --output-dir" in line
    again = [*RUN_OF_ONE, "--output-dir", str(folder)]
    assert "--resume" in usage_error(again, capsys)
    assert main([*again, "--resume"]) == 0
    assert "finished before" in capsys.readouterr().err
    assert point.read_bytes() == before
    assert main(["report", str(folder)]) == 0
