"""Which fed positions go on past layer 1: budget, ranking and constraints in one pass."""
