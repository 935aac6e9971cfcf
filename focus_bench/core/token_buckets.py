"""Token buckets: the padded sizes for which a step's stages are captured as CUDA graphs.

The engine captures and pads by this rule, the simulator costs by it. Knows no device.
"""

# Buckets are powers of two up to 256 tokens, then multiples of 64, and of 256 from 1,024 on. (The
# paper's E.4 has multiples of 256 from 256 on: padding the 310 tokens that FOCUS keeps at batch 32
# to 512 computes two thirds more rows. ADR 0009.)
_STEPS = ((1024, 64), (None, 256))

# "auto" replays graphs of dense models up to this many tokens. On an H200 with SDAR-8B, FOCUS at
# batch 32 (310 kept tokens) takes 11.0 ms a step with graphs and 20.0 without; the baseline there
# (1,024 tokens) 26.1 and 26.5. Larger graphs gain in the first layers and lose by padding the
# others (ADR 0009). Models with experts, which read few weights a token and launch more kernels,
# have graphs of every size (ADR 0016).
MAX_GRAPH_TOKENS = 1024
# More tokens than these are prefilled kernel by kernel: on an H200 the host launches SDAR-8B's
# layers in 11 to 24 ms, and 1,000 tokens take that too; LLaDA2.0-mini's in 14 to 40 ms.
_PREFILL_TOKENS = {"dense": MAX_GRAPH_TOKENS, "experts": 4096}
# So are more chunks of prompts.
MAX_GRAPH_CHUNKS = 16


def token_bucket(num_tokens: int) -> int:
    """The smallest bucket that holds `num_tokens` (at least 1)."""
    if num_tokens <= 256:
        return 1 << max(0, num_tokens - 1).bit_length()
    step = next(step for limit, step in _STEPS if limit is None or num_tokens <= limit)
    return -(-num_tokens // step) * step


def buckets_up_to(max_tokens: int) -> list[int]:
    """All buckets for 1 to `max_tokens` tokens, ascending."""
    buckets = [token_bucket(1)]
    while buckets[-1] < max_tokens:
        buckets.append(token_bucket(buckets[-1] + 1))
    return buckets


def captured_buckets(cuda_graphs: str, capacity: int, *, experts: bool) -> tuple[int, ...]:
    """The buckets that have graphs, ascending, of steps of at most `capacity` tokens.

    `cuda_graphs` as in EngineConfig; `experts`: of a model that has them. The largest may exceed
    the capacity: it holds the step of all tokens. Steps of more tokens than it holds run eagerly,
    for the very tokens.
    """
    auto = capacity if experts else min(capacity, MAX_GRAPH_TOKENS)
    limit = {"off": 0, "on": capacity, "auto": auto}[cuda_graphs]
    return tuple(buckets_up_to(limit)) if limit else ()


def prefill_buckets(cuda_graphs: str, block_length: int, *, experts: bool) -> tuple[int, ...]:
    """The buckets of prefilled tokens that have graphs, ascending; chunks are whole blocks."""
    if cuda_graphs == "off":
        return ()
    captured = buckets_up_to(_PREFILL_TOKENS["experts" if experts else "dense"])
    return tuple(bucket for bucket in captured if bucket >= block_length)
