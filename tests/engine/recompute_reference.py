"""Block-causal decoding stated a second time, as a loop that recomputes everything: no cache.

transformers' Qwen3 sees the whole sequence, masks included, under an explicit 4-D mask at every
step. Shares no code with the package.
"""

from dataclasses import dataclass, field

import torch
from qwen3_reference import MASK_TOKEN_ID, full_logits
from transformers import Qwen3ForCausalLM


@dataclass(kw_only=True)
class Decoding:
    """A finished request: output tokens, and block-relative positions decoded, step by step."""

    output: list[int] = field(default_factory=list)
    decoded: list[tuple[int, ...]] = field(default_factory=list)
    reason: str = ""


def choose(
    confidence: dict[int, float], *, strategy: str, threshold: float, per_step: int
) -> list[int]:
    """Positions that a step decodes, of those in `confidence`."""
    if strategy == "sequential":
        return sorted(confidence)[:per_step]
    by_confidence = sorted(confidence, key=lambda p: (-confidence[p], p))
    if strategy == "low_confidence_static":
        return sorted(by_confidence[:per_step])
    passing = [p for p in sorted(confidence) if confidence[p] >= threshold]
    return passing or by_confidence[:1]


def predict(logits: torch.Tensor) -> tuple[int, float]:
    """Greedy token and its probability, the mask token excluded."""
    logits = logits.clone()
    logits[MASK_TOKEN_ID] = -torch.inf
    token = int(logits.argmax())
    return token, float(torch.softmax(logits, dim=-1)[token])


def find_end(
    output: list[int | None], *, max_new_tokens: int, stop_ids: tuple[int, ...]
) -> tuple[int, str] | None:
    """(length, reason) once the output is decided, else None. `output` has None where masked."""
    for index, token in enumerate(output):
        if token is None:
            return None
        if token in stop_ids:
            return index + 1, "stop"
        if index + 1 == max_new_tokens:
            return index + 1, "length"
    return None


def decode_without_cache(
    model: Qwen3ForCausalLM,
    prompt: list[int],
    *,
    block_length: int,
    max_new_tokens: int,
    threshold: float,
    strategy: str = "low_confidence_dynamic",
    steps: int | None = None,
    stop_ids: tuple[int, ...] = (),
) -> Decoding:
    """Decode one prompt greedily."""
    result = Decoding()
    tokens: list[int | None] = list(prompt)
    start = len(prompt) // block_length * block_length
    per_step = max(1, block_length // (steps or block_length))
    while True:
        tokens += [None] * (start + block_length - len(tokens))
        while None in tokens:
            ids = [MASK_TOKEN_ID if t is None else t for t in tokens]
            logits = full_logits(model, ids, block_length)
            masked = [i for i in range(start, start + block_length) if tokens[i] is None]
            drawn = {i: predict(logits[i]) for i in masked}
            confidence = {i: c for i, (_, c) in drawn.items()}
            chosen = choose(confidence, strategy=strategy, threshold=threshold, per_step=per_step)
            for position in chosen:
                tokens[position] = drawn[position][0]
            result.decoded.append(tuple(p - start for p in chosen))
            output = tokens[len(prompt) :]
            end = find_end(output, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
            if end is not None:
                length, result.reason = end
                result.output = [t for t in output[:length] if t is not None]
                return result
        start += block_length
