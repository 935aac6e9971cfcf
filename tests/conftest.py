"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder with the real data sets and the SDAR tokenizer; tests that need it skip without it."""
    root = Path(__file__).resolve().parents[1]
    named = os.environ.get("FOCUS_BENCH_SHARED")
    folder = Path(named) if named else root.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("real data sets are not on this machine (set FOCUS_BENCH_SHARED)")
    return folder
