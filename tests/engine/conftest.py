"""Fixtures of the engine's tests."""

from decision_margins import decisive_margins as decisive_margins
from decisive_routes import decisive_routes as decisive_routes
