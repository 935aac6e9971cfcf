"""Tasks with checkable answers, made from a seed: what the bundled model learns."""
