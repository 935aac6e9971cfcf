"""Linear layers of few rows: the weights are streamed once, at the memory's speed."""
