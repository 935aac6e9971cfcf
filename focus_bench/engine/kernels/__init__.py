"""Triton kernels of the GPU engine, one folder an operation; they know nothing of the project."""
