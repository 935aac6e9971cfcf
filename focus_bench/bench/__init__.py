"""Sweeps: which points to run, in what order, and what remains when some of them fail."""
