"""Runs the model: weights, paged KV cache, attention, sampling and the forward pass in PyTorch."""
