"""Result folders: what they hold, resume, locks, and what a kill leaves."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import PROVENANCE, make_point, make_request, make_run, make_step

from focus_bench.cli.main import main
from focus_bench.core.errors import UsageError
from focus_bench.core.records import SCHEMA_VERSION
from focus_bench.report.atomic import concatenate_atomic, write_atomic
from focus_bench.report.folder import ResultFolder, load_folder
from focus_bench.report.manifest import Manifest, new_manifest, planned_points
from focus_bench.report.results import result_of

POINTS = [make_point(policy, seed=seed) for seed in (0, 1) for policy in ("baseline", "focus")]


def manifest(points=POINTS, **changes) -> Manifest:
    base = {"command": "focus-bench run", "seed": 0}
    return new_manifest(planned_points(points, source="measured"), **{**base, **changes})


def add(folder: ResultFolder, point, *, requests: int = 2, source="measured", hardware="") -> None:
    run = make_run(
        [make_request(i) for i in range(requests)],
        [make_step(i, start_s=float(i)) for i in range(3)],
        source=source,
    )
    result = result_of(point, run, provenance=PROVENANCE, hardware=hardware)
    folder.add_point(result, run)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_folder_holds_the_documented_files(tmp_path):
    with ResultFolder.create(tmp_path / "out", manifest()) as folder:
        add(folder, POINTS[0])
        add(folder, POINTS[1])
    out = tmp_path / "out"
    assert [row["point_hash"] for row in rows(out / "summary.csv")] == [
        POINTS[0].hash(),
        POINTS[1].hash(),
    ]
    assert len(rows(out / "requests.csv")) == 4
    assert len(rows(out / "steps.csv")) == 6
    assert {row["point_hash"] for row in rows(out / "steps.csv")} == {p.hash() for p in POINTS[:2]}
    assert len(json.loads((out / "results.json").read_text())["points"]) == 2
    run = json.loads((out / "run.json").read_text())
    assert run["schema_version"] == SCHEMA_VERSION
    assert run["points"][0]["point_hash"] == POINTS[0].hash()
    assert run["points"][0]["config"]["decode"]["policy"] == "baseline"
    assert run["data"][0]["sha256"] == PROVENANCE.sha256
    assert run["data"][0]["dropped"] == {"empty prompt": 2}
    assert len(run["data"]) == 1
    assert run["versions"]["numpy"]
    assert run["machine"]["processor"]


def test_loaded_results_equal_those_added(tmp_path):
    with ResultFolder.create(tmp_path, manifest(), resume=False) as folder:
        add(folder, POINTS[2])
        add(folder, POINTS[0])
        expected = folder.results
    loaded = load_folder(tmp_path)
    assert loaded.results == expected
    assert [r.point for r in loaded.results] == [POINTS[2], POINTS[0]]


def test_a_point_that_is_added_again_replaces_its_rows(tmp_path):
    with ResultFolder.create(tmp_path, manifest()) as folder:
        add(folder, POINTS[0], requests=2)
        add(folder, POINTS[1], requests=2)
        add(folder, POINTS[0], requests=5)
    assert len(rows(tmp_path / "summary.csv")) == 2
    assert rows(tmp_path / "summary.csv")[0]["completed"] == "5"
    assert len(rows(tmp_path / "requests.csv")) == 7


def test_resume_keeps_what_is_finished_and_says_so(tmp_path):
    with ResultFolder.create(tmp_path, manifest(POINTS[:2])) as folder:
        add(folder, POINTS[0])
        assert folder.finished(POINTS[0], "measured") is not None
        assert folder.finished(POINTS[0], "predicted") is None
        assert folder.finished(POINTS[1], "measured") is None
    with ResultFolder.create(tmp_path, manifest(POINTS[1:]), resume=True) as folder:
        assert folder.finished(POINTS[0], "measured") == folder.results[0]
        add(folder, POINTS[1])
    loaded = load_folder(tmp_path)
    assert [r.point for r in loaded.results] == POINTS[:2]
    assert [p.config for p in loaded.manifest.points] == POINTS


def test_predictions_for_two_profiles_are_two_results(tmp_path):
    with ResultFolder.create(tmp_path, manifest()) as folder:
        add(folder, POINTS[0], source="predicted", hardware="H100-SXM")
        add(folder, POINTS[0], source="predicted", hardware="H200")
        add(folder, POINTS[0], source="measured")
    assert [r.hardware for r in load_folder(tmp_path).results] == ["H100-SXM", "H200", ""]


def test_results_are_never_overwritten_without_resume(tmp_path):
    ResultFolder.create(tmp_path, manifest()).close()
    with pytest.raises(UsageError, match="--resume"):
        ResultFolder.create(tmp_path, manifest())


def test_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="empty folder"):
        ResultFolder.create(tmp_path, manifest())
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        ResultFolder.create(tmp_path / "thesis.tex", manifest())
    with pytest.raises(UsageError, match="can be written"):
        ResultFolder.create(tmp_path / "thesis.tex" / "out", manifest())


def test_loading_what_is_no_folder_of_results_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"run\.json"):
        load_folder(tmp_path)
    with pytest.raises(UsageError, match="nowhere"):
        load_folder(tmp_path / "nowhere")


def test_half_written_and_foreign_files_are_named(tmp_path):
    with ResultFolder.create(tmp_path, manifest()) as folder:
        add(folder, POINTS[0])
    (point_file,) = (tmp_path / "points").glob("*.json")
    whole = point_file.read_text()
    point_file.write_text(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=point_file.name):
        load_folder(tmp_path)
    data = json.loads(whole)
    data["schema_version"] = SCHEMA_VERSION + 1
    point_file.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=f"schema_version: {SCHEMA_VERSION + 1}"):
        load_folder(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(UsageError, match=r"run\.json schema_version"):
        load_folder(tmp_path)


def test_two_writers_of_one_folder_are_refused_with_the_holder_named(tmp_path):
    with ResultFolder.create(tmp_path, manifest()):
        with pytest.raises(UsageError, match=f"process {os.getpid()} on "):
            ResultFolder.create(tmp_path, manifest(), resume=True)
        load_folder(tmp_path)
    ResultFolder.create(tmp_path, manifest(), resume=True).close()


def test_left_overs_of_a_killed_writer_are_removed(tmp_path):
    (tmp_path / "points").mkdir()
    (tmp_path / "run.json.77.tmp").write_text("{")
    (tmp_path / "points" / "x.json.77.tmp").write_text("{")
    with ResultFolder.create(tmp_path, manifest()) as folder:
        add(folder, POINTS[0])
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "a"
    write_atomic(target, "old")
    with pytest.raises(FileNotFoundError):
        concatenate_atomic(target, [tmp_path / "missing"])
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.text(alphabet='ab, "\n', max_size=5), max_size=4), max_size=4))
def test_concatenated_tables_have_all_rows_under_one_header(tmp_path_factory, tables):
    folder = tmp_path_factory.mktemp("parts")
    parts = []
    for i, cells in enumerate(tables):
        part = folder / f"{i}.csv"
        with open(part, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [["x", "y"], *([c, "1"] for c in cells)]
            )
        parts.append(part)
    concatenate_atomic(folder / "all.csv", parts)
    assert [row["x"] for row in rows(folder / "all.csv")] == [c for cells in tables for c in cells]


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from report_samples import make_point
from test_folder import add, manifest
from focus_bench.report.folder import ResultFolder
points = [make_point(seed=seed) for seed in range(40)]
with ResultFolder.create(Path(sys.argv[1]), manifest(points), resume=True) as folder:
    print("open", flush=True)
    for point in points:
        if folder.finished(point, "measured") is None:
            add(folder, point, requests=20)
            print(point.hash(), flush=True)
"""


def test_a_killed_sweep_keeps_every_finished_point(tmp_path):
    out = tmp_path / "out"
    told: list[str] = []
    for attempt in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(out), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        for _ in range(2 + attempt):
            told.append(process.stdout.readline().strip())
            load_folder(out)
        time.sleep(0.003 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        told += process.stdout.read().split()
        process.wait()
        process.stdout.close()
        loaded = [r.point_hash for r in load_folder(out).results]
        assert loaded[: len(told)] == told
        told = loaded  # one more point may have been finished and not told
    assert len(told) == len(set(told)) >= 14
    with ResultFolder.create(out, manifest(), resume=True):
        pass
    assert [row["point_hash"] for row in rows(out / "summary.csv")] == told
    assert len(rows(out / "requests.csv")) == 20 * len(told)
    assert not list(out.rglob("*.tmp"))


def test_points_that_are_listed_but_not_there_are_counted(tmp_path, capsys):
    with ResultFolder.create(tmp_path / "out", manifest()) as folder:
        for point in POINTS:
            add(folder, point)
    assert load_folder(folder.path).num_missing == 0
    assert main(["report", str(folder.path)]) == 0
    assert "missing" not in capsys.readouterr().out
    for file in sorted((folder.path / "points").iterdir()):
        if not file.name.startswith(POINTS[0].hash()):
            file.unlink()
    assert load_folder(folder.path).num_missing == 3
    assert main(["report", str(folder.path)]) == 0
    line = f"{folder.path}: 3 of 4 points of run.json are missing"
    assert sum(shown.startswith(line) for shown in capsys.readouterr().out.splitlines()) == 1


def test_report_names_and_leaves_out_what_is_no_result_folder(tmp_path, capsys):
    of_paper = tmp_path / "paper"
    for path in (tmp_path / "out", of_paper / "predicted"):
        with ResultFolder.create(path, manifest()) as folder:
            add(folder, POINTS[0])
    training, notes = tmp_path / "training", tmp_path / "notes.txt"
    training.mkdir()
    (training / "run.json").write_text("{}")
    notes.write_text("x")
    found = [str(path) for path in sorted(tmp_path.iterdir())]
    for extra in ([], ["--html", str(tmp_path / "page.html")]):
        assert main(["report", *found, *extra]) == 0
        out, err = capsys.readouterr()
        assert "baseline" in out
        named = f"{notes}, {of_paper} (has {of_paper / 'predicted'}), {training}"
        assert err == f"left out, no result folders: {named}\n"
    assert main(["report", str(of_paper), str(notes)]) == 2  # nothing would remain
    assert f"such as {of_paper / 'predicted'}" in capsys.readouterr().err
    assert main(["report", *found, str(tmp_path / "absent")]) == 2
    assert f"{tmp_path / 'absent'}' is not usable" in capsys.readouterr().err
    (tmp_path / "out" / "run.json").unlink()  # damaged, but one
    assert main(["report", *found, str(of_paper / "predicted")]) == 2
    assert "--resume --output-dir" in capsys.readouterr().err
