"""Model families: weights and the functions of one layer. No scheduling and no eviction inside."""
