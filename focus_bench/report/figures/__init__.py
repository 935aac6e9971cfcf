"""Figures of a report: one file a kind of figure, from results to SVG and PNG."""
