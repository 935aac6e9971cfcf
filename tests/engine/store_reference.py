"""The policies stated a second time: one request, K/V in dictionaries by layer and position.

Slow loops over positions and heads, written from the rules ("Effects on the forward", budget,
constraints, freezing); of the package only the record of settings and the hash of the random draws
are used. Attending to a position that no forward wrote is a KeyError.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from qwen3_reference import MASK_TOKEN_ID
from recompute_reference import choose, find_end, predict
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.glm4_moe.modeling_glm4_moe import apply_rotary_pos_emb  # partial or whole

from focus_bench.core.config import DecodeConfig
from focus_bench.core.rng import stream_key, uniform

Store = list[dict[int, tuple[Tensor, Tensor]]]  # per layer: absolute position -> K, V [Hkv, D]
FREEZES = {
    "baseline": None,
    "delayed-cache": "decoded",
    "delayed-cache-neighbor": "neighbor",
    "focus": "neighbor",
    "focus-fixed": "neighbor",
    "ideal": "neighbor",
}


@dataclass(kw_only=True)
class Trajectory:
    """A finished request: its tokens, and (fed, kept, decoded) of every forward."""

    output: list[int] = field(default_factory=list)
    forwards: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = field(
        default_factory=list
    )
    reason: str = ""


@dataclass(kw_only=True)
class Prefix:
    """Layer 0 done and layer 1 projected: by block position, hidden states and queries, keys."""

    hidden: dict[int, Tensor]
    queries: list[dict[int, Tensor]]
    keys: list[dict[int, Tensor]]


class StoreDecoder:
    """Decodes one prompt greedily under a policy."""

    def __init__(
        self, model: PreTrainedModel, config: DecodeConfig, *, request_id: int = 0, seed: int = 0
    ) -> None:
        self.model = model
        self.config = config
        self.request_id = request_id
        self.seed = seed
        self.store: Store = [{} for _ in model.model.layers]

    @torch.inference_mode()
    def decode(
        self, prompt: list[int], *, max_new_tokens: int, stop_ids: tuple[int, ...] = ()
    ) -> Trajectory:
        B = self.config.block_length
        result = Trajectory()
        tokens: list[int | None] = list(prompt)
        start = len(prompt) // B * B
        for first in range(0, start, B):
            whole = list(range(B))
            prefix = self.prefix(self.store, tokens, first, whole)
            self.suffix(self.store, first, prefix, whole, B - 1)
        self.request_tokens = self.request_steps = 0
        self.block_index = 0
        while True:
            tokens += [None] * (start + B - len(tokens))
            uncached = set(range(B))
            progress = -1
            self.block_tokens = self.block_steps = 0
            while True:
                was_decoded = [tokens[start + p] is not None for p in range(B)]
                fed = sorted(uncached)
                masked = [p for p in fed if not was_decoded[p]]
                if all(was_decoded):
                    prefix = self.prefix(self.store, tokens, start, fed)
                    self.suffix(self.store, start, prefix, fed, max(progress, *fed))
                    result.forwards.append((tuple(fed), tuple(fed), ()))
                    break
                kept, chosen, drawn, progress = self.step(tokens, start, fed, masked, progress)
                for p in chosen:
                    tokens[start + p] = drawn[p]
                result.forwards.append((tuple(fed), tuple(kept), tuple(chosen)))
                self.block_steps += 1
                self.request_steps += 1
                self.block_tokens += len(chosen)
                self.request_tokens += len(chosen)
                for p in range(B):
                    if self.is_ready(was_decoded, p):
                        uncached.discard(p)
                output = tokens[len(prompt) :]
                end = find_end(output, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
                if end is not None:
                    length, result.reason = end
                    result.output = [t for t in output[:length] if t is not None]
                    return result
            start += B
            self.block_index += 1

    def is_ready(self, was_decoded: list[bool], p: int) -> bool:
        rule = FREEZES[self.config.policy]
        if rule is None or not was_decoded[p]:
            return False
        return rule == "decoded" or p == len(was_decoded) - 1 or was_decoded[p + 1]

    def step(
        self, tokens: list[int | None], start: int, fed: list[int], masked: list[int], progress: int
    ) -> tuple[list[int], list[int], dict[int, int], int]:
        """(kept, decoded, token of each kept masked position, progress) of one decode step."""
        forced = None
        if self.config.policy == "ideal":
            trial: Store = [dict(layer) for layer in self.store]
            prefix = self.prefix(trial, tokens, start, fed)
            logits = self.suffix(trial, start, prefix, fed, max(progress, *fed))
            forced = self.accept({p: predict(logits[p]) for p in masked})
        prefix = self.prefix(self.store, tokens, start, fed)
        selected = self.select(prefix, masked) if forced is None else set(forced)
        kept = fed
        if selected is not None:
            kept_masked = self.constrain(tokens, start, selected, masked, progress)
            kept = [p for p in fed if p in kept_masked or p not in masked]
        progress = max(progress, *kept) if kept else progress
        logits = self.suffix(self.store, start, prefix, kept, progress)
        drawn = {p: predict(logits[p]) for p in kept if p in masked}
        chosen = self.accept(drawn) if forced is None else forced
        return kept, chosen, {p: token for p, (token, _) in drawn.items()}, progress

    def accept(self, drawn: dict[int, tuple[int, float]]) -> list[int]:
        steps = self.config.steps or self.config.block_length
        return choose(
            {p: c for p, (_, c) in drawn.items()},
            strategy=self.config.unmasking_strategy,
            threshold=self.config.threshold,
            per_step=max(1, self.config.block_length // steps),
        )

    # -- eviction ------------------------------------------------------------------------------

    def select(self, prefix: Prefix, masked: list[int]) -> set[int] | None:
        """Positions with the largest deltas, or None where nothing is evicted."""
        config, count = self.config, len(masked)
        if config.policy == "focus":
            tokens, steps = self.block_tokens, self.block_steps
            if config.budget_average == "sequence":
                tokens, steps = self.request_tokens, self.request_steps
            average = Fraction(tokens, steps) if steps else Fraction(1)
            budget = min(count, max(1, math.ceil(Fraction(str(config.alpha)) * average)))
        elif config.policy == "focus-fixed":
            budget = min(count, config.retain)
        else:
            return None
        if count <= budget:
            return None
        before, after = (self.importance(prefix, layer, masked) for layer in (0, 1))
        delta = {p: after[p] - before[p] for p in masked}
        if config.policy == "focus":
            mean = sum(delta.values()) / count
            std = math.sqrt(sum((d - mean) ** 2 for d in delta.values()) / count)
            outliers = sum(d >= mean + std for d in delta.values()) if std > 0 else 0
            budget = max(budget, outliers)
        score = delta
        if config.policy == "focus-fixed" and config.select == "bottom":
            score = {p: -d for p, d in delta.items()}
        if config.policy == "focus-fixed" and config.select == "random":
            key = stream_key(self.seed, "select-random")
            place = (self.request_id, self.block_index, self.block_steps)
            score = {p: float(uniform(key, *place, p)) for p in masked}
        return set(sorted(masked, key=lambda p: (-score[p], p))[:budget])

    def importance(self, prefix: Prefix, layer: int, masked: list[int]) -> dict[int, float]:
        queries, keys = prefix.queries[layer], prefix.keys[layer]
        num_q_heads, head_dim = queries[masked[0]].shape
        group = num_q_heads // keys[masked[0]].shape[0]
        total = dict.fromkeys(masked, 0.0)
        for head in range(num_q_heads):
            for i in masked:
                scores = [
                    float(queries[i][head] @ keys[j][head // group]) * head_dim**-0.5
                    for j in masked
                ]
                pooled = [max(scores[max(0, j - 1) : j + 2]) for j in range(len(masked))]
                top = max(pooled)
                weights = [math.exp(s - top) for s in pooled]
                for j, weight in zip(masked, weights, strict=True):
                    total[j] += weight / sum(weights)
        return total

    def constrain(
        self,
        tokens: list[int | None],
        start: int,
        selected: set[int],
        masked: list[int],
        progress: int,
    ) -> set[int]:
        kept = set(selected)
        for p in masked:  # 1: the position left of a selected mask
            right = p + 1
            if right in selected and tokens[start + right] is None:
                kept.add(p)
        rightmost = max(kept)
        for p in masked:  # 3: whatever has no K/V past layer 1 yet
            if p < rightmost and p > progress:
                kept.add(p)
        return kept

    # -- forward -------------------------------------------------------------------------------

    def prefix(self, store: Store, tokens: list[int | None], start: int, fed: list[int]) -> Prefix:
        ids = [tokens[start + p] for p in fed]
        known = torch.tensor([MASK_TOKEN_ID if t is None else t for t in ids])
        hidden = dict(zip(fed, self.model.model.embed_tokens(known), strict=True))
        q0, k0 = self.project(store, 0, start, hidden)
        hidden = self.finish(store, 0, hidden, q0, start + self.config.block_length)
        if len(store) == 1:
            return Prefix(hidden=hidden, queries=[q0], keys=[k0])
        q1, k1 = self.project(store, 1, start, hidden)
        return Prefix(hidden=hidden, queries=[q0, q1], keys=[k0, k1])

    def suffix(
        self, store: Store, start: int, prefix: Prefix, kept: list[int], progress: int
    ) -> dict[int, Tensor]:
        """Logits of the kept positions; layers >= 1 see history and block positions to progress."""
        end = start + progress + 1
        hidden = {p: prefix.hidden[p] for p in kept}
        if len(store) > 1:
            queries = {p: prefix.queries[1][p] for p in kept}
            hidden = self.finish(store, 1, hidden, queries, end)
        for layer in range(2, len(store)):
            queries, _ = self.project(store, layer, start, hidden)
            hidden = self.finish(store, layer, hidden, queries, end)
        return {p: self.model.lm_head(self.model.model.norm(h)).float() for p, h in hidden.items()}

    def project(
        self, store: Store, layer: int, start: int, hidden: dict[int, Tensor]
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Queries and keys by position; K and V go to the store."""
        module = self.model.model.layers[layer]
        attention = module.self_attn
        queries, keys = {}, {}
        for p, state in hidden.items():
            normed = module.input_layernorm(state)
            heads = (-1, attention.head_dim)
            q = attention.q_norm(attention.q_proj(normed).view(heads))
            k = attention.k_norm(attention.k_proj(normed).view(heads))
            position = torch.tensor([[start + p]])
            cos, sin = self.model.model.rotary_emb(state[None, None], position)
            q, k = apply_rotary_pos_emb(q[None, :, None], k[None, :, None], cos, sin)
            queries[p], keys[p] = q[0, :, 0], k[0, :, 0]
            store[layer][start + p] = (keys[p], attention.v_proj(normed).view(heads))
        return queries, keys

    def finish(
        self,
        store: Store,
        layer: int,
        hidden: dict[int, Tensor],
        queries: dict[int, Tensor],
        num_keys: int,
    ) -> dict[int, Tensor]:
        """Attention over absolute positions 0 to num_keys - 1, and the rest of the layer."""
        module = self.model.model.layers[layer]
        seen = [store[layer][position] for position in range(num_keys)]
        keys, values = (torch.stack(part) for part in zip(*seen, strict=True))
        result = {}
        for p, state in hidden.items():
            group = queries[p].shape[0] // keys.shape[1]
            attended = []
            for head, query in enumerate(queries[p]):
                scores = keys[:, head // group] @ query * module.self_attn.scaling
                attended.append(torch.softmax(scores, dim=0) @ values[:, head // group])
            state = state + module.self_attn.o_proj(torch.cat(attended))
            normed = module.post_attention_layernorm(state)
            result[p] = state + module.mlp(normed[None, None])[0, 0]
        return result
