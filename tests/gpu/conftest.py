"""Fixtures of the tests on a GPU, which use the helpers of the engine's tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "engine"))

from decision_margins import decisive_margins as decisive_margins
from decisive_routes import decisive_routes as decisive_routes
