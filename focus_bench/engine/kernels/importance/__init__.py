"""Importance deltas of masked tokens between layers 0 and 1 (paper, Eq. 2)."""
