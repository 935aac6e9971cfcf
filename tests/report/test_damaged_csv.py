"""CSV files of a folder that are damaged: one line names the file, whoever reads it."""

import random
from pathlib import Path

import pytest
from report_samples import PROVENANCE, make_point, make_request, make_run, make_step

from focus_bench.cli.main import main
from focus_bench.report.folder import ResultFolder
from focus_bench.report.manifest import new_manifest, planned_points
from focus_bench.report.results import result_of

DAMAGES = {
    "random": random.Random(0).randbytes(1 << 12),
    "empty": b"",
    "other columns": b"a,b\n1,2\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of one point with two requests and three steps."""
    point = make_point("focus")
    manifest = new_manifest(planned_points([point], source="measured"), command="run", seed=0)
    run = make_run(
        [make_request(i) for i in range(2)],
        [make_step(i, start_s=float(i), num_rows=4 - i) for i in range(3)],
    )
    with ResultFolder.create(tmp_path / "out", manifest) as opened:
        opened.add_point(result_of(point, run, provenance=PROVENANCE), run)
    return tmp_path / "out"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that ends with code 2."""
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("flag", ["--html", "--perfetto"])
@pytest.mark.parametrize("name", ["requests", "steps"])
def test_a_damaged_file_is_named(
    folder: Path, name: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = folder.glob(f"points/*.{name}.csv")
    whole = file.read_bytes()
    cuts = {f"cut by {n}": whole[:-n] for n in (1, 2, 40)}
    no_number = {"no number": whole[: whole.rindex(b",")] + b",x\n"}
    for content in (
        DAMAGES | cuts | (no_number if (name, flag) == ("steps", "--perfetto") else {})
    ).values():
        file.write_bytes(content)
        line = refused(["report", str(folder), flag, str(tmp_path / "shown.json")], capsys)
        assert line.startswith(f"focus-bench: error: result file: '{file}' is not usable")
        assert not (tmp_path / "shown.json").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [("requests", "one of 2 requests, not of 1"), ("steps", "one with all steps of its result")],
)
def test_a_trace_lacks_no_record(
    folder: Path, name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = folder.glob(f"points/*.{name}.csv")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    line = refused(["report", str(folder), "--perfetto", str(tmp_path / "t.json")], capsys)
    assert said in line


def damaged(whole: bytes, damage: str) -> bytes | None:
    """A file's content after that damage; None: it is gone."""
    cut = whole[: whole.index(b"\n") // 2], whole[: len(whole) // 2]
    return {"missing": None, "empty": b"", "cut header": cut[0], "cut": cut[1]}[damage]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut header", "cut"])
@pytest.mark.parametrize("ending", ["requests.csv", "steps.csv", "environment.csv", "json"])
def test_resume_names_a_damaged_file_and_does_its_point_again_without_it(
    ending: str, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulate(*batch_sizes: str) -> list[str]:
        sizes = [flag for size in batch_sizes for flag in ("--batch-size", size)]
        shape = ["--policy", "focus", "--num-prompts", "2", "--max-new-tokens", "8", *sizes]
        return ["simulate", "--gpu", "h200", *shape, "--output-dir", str(tmp_path / "out")]

    assert main(simulate("1", "2")) == 0
    tables = {file.name: file.read_bytes() for file in (tmp_path / "out").glob("*.csv")}
    file = sorted((tmp_path / "out" / "points").glob(f"*.{ending}"))[0]
    whole = file.read_bytes()
    content = damaged(whole, damage)
    others = {f: f.read_bytes() for f in file.parent.iterdir() if f != file}
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    capsys.readouterr()
    stem = file.with_name(f"{file.name.partition('.')[0]}.*")
    if (ending, damage) != ("json", "missing"):  # such a point is not finished
        line = refused([*simulate("1", "2"), "--resume"], capsys)
        assert line.startswith(f"focus-bench: error: result file: '{file}' is not usable")
        assert line.endswith(f"; once {stem} are deleted, --resume does the point again")
        assert {f: f.read_bytes() for f in others} == others
        for part in file.parent.glob(stem.name):
            part.unlink()
    assert main([*simulate("1", "2"), "--resume"]) == 0
    for name in ("requests.csv", "steps.csv", "environment.csv"):
        found = sorted((tmp_path / "out" / name).read_bytes().splitlines())
        assert found == sorted(tables[name].splitlines())
