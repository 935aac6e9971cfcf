"""The worked examples of docs/extending.md work: its changes fit the code of today, and its
commands run on a copy of the package that has them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_text import DOCS, ROOT, blocks, patches

PAGE = DOCS / "extending.md"
PROGRAM = """\
#!{python}
import sys
from focus_bench.cli.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the changed package in it and a `bin` with its program."""
    folder = tmp_path_factory.mktemp("extended")
    for source in (ROOT / "focus_bench").rglob("*"):
        target = folder / source.relative_to(ROOT)
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".py":
            target.write_bytes(source.read_bytes())
        else:
            target.symlink_to(source)
    for patch in patches(PAGE):
        file = folder / patch.file
        text = file.read_text(encoding="utf-8")
        assert text.count(patch.old) == 1, f"{patch.file} has changed: {PAGE.name} is out of date"
        file.write_text(text.replace(patch.old, patch.new), encoding="utf-8")
    program = folder / "bin" / "focus-bench"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return folder


def test_there_are_examples_of_every_kind() -> None:
    assert {patch.file for patch in patches(PAGE)} == {
        "focus_bench/core/config.py",
        "focus_bench/core/hardware.py",
        "focus_bench/core/model_spec.py",
        "focus_bench/decoding/policies.py",
        "focus_bench/workloads/formats.py",
    }
    assert len(blocks(PAGE, "sh")) == 6


@pytest.mark.parametrize("script", blocks(PAGE, "sh"), ids=lambda text: text.split("\n")[0])
def test_the_commands_run(script: str, changed: Path) -> None:
    environment = os.environ | {
        "PATH": f"{changed / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(changed),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(changed / "cache"),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=changed,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "results: results/" in done.stdout
    for name in ("focus-early-freeze", "my-3b", "alpaca", "a100-pcie-40g"):
        assert (name in script) == (name in done.stdout)


def test_the_files_that_it_names_exist() -> None:
    """Paths in backticks, but for placeholders."""
    text = PAGE.read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:focus_bench|decoding|engine|models|tests)/[\w/]+(?:\.py)?)`", text)
    )
    assert len(named) > 15
    roots = (ROOT, ROOT / "focus_bench", ROOT / "focus_bench" / "engine")
    missing = [n for n in named if not any((r / n).exists() for r in roots) and "NAME" not in n]
    assert missing == []
