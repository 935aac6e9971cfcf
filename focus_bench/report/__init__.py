"""Metrics of a run, result folders, tables and progress. Imports core and rich only."""
