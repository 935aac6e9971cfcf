"""Continuous batching over a page pool: what runs in each step. No torch, no SimPy."""
