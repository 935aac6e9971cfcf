"""Per-head norm and rotary of query and key, fused with the write of keys and values."""
