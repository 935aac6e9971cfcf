"""The simulator: the engine's scheduler and rules under a time model, on SimPy's clock."""
