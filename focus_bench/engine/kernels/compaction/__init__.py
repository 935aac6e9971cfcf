"""Gathers the states of kept tokens into consecutive rows, all of them in one launch."""
