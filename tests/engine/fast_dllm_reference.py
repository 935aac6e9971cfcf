"""Fast-dLLM v2's decoding stated a second time: one request, K/V in dictionaries, explicit loops.

Written after the published procedure, sub-block by sub-block, and not after this package's masks;
of the package nothing is used. Attending to a position that no forward wrote is a KeyError.
"""

from dataclasses import dataclass, field

import torch
from recompute_reference import choose, find_end, predict
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen3ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

MASK_TOKEN_ID = 96
Reference = Qwen2ForCausalLM | Qwen3ForCausalLM


@dataclass(kw_only=True)
class Decoded:
    """A finished request: its tokens, (fed, decoded) of every forward behind the prefill, and the
    tokens that commit passes gave, by absolute position.
    """

    output: list[int] = field(default_factory=list)
    forwards: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    carried: dict[int, int] = field(default_factory=dict)
    reason: str = ""


class FastDllm:
    """Decodes one prompt greedily; `shifted`: the logits of row i are those of position i + 1."""

    def __init__(
        self,
        model: Reference,
        *,
        shifted: bool,
        block_length: int,
        sub_block: int = 8,
        threshold: float = 0.3,
        strategy: str = "low_confidence_dynamic",
        steps: int | None = None,
    ) -> None:
        self.model = model
        self.shifted = shifted
        self.block_length = block_length
        self.sub_block = sub_block
        self.rule = {
            "strategy": strategy,
            "threshold": threshold,
            "per_step": max(1, block_length // (steps or block_length)),
        }
        self.store: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in model.model.layers]

    @torch.inference_mode()
    def decode(
        self, prompt: list[int], *, max_new_tokens: int, stop_ids: tuple[int, ...] = ()
    ) -> Decoded:
        result = Decoded()
        tokens: list[int | None] = list(prompt)

        def ended() -> bool:
            output = tokens[len(prompt) :]
            end = find_end(output, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
            if end is None:
                return False
            length, result.reason = end
            result.output = [t for t in output[:length] if t is not None]
            return True

        size = self.block_length
        whole_prompt_blocks = len(prompt) // size
        for block in range(whole_prompt_blocks):
            logits = self.forward(tokens, block * size, range(size))
            is_last = block + 1 == whole_prompt_blocks
            if self.shifted and is_last and len(prompt) % size == 0:
                result.forwards.append((tuple(range(size)), ()))
                self.carry(tokens, logits, result)
                if ended():
                    return result
        while True:
            start = len(tokens) // size * size
            tokens += [None] * (start + size - len(tokens))
            is_new = True
            for first in range(0, size, self.sub_block):
                sub = range(first, min(first + self.sub_block, size))
                while any(tokens[start + p] is None for p in sub):
                    alone = not is_new and tokens[start + first] is not None
                    fed = list(sub) if alone else list(range(size))
                    is_new = False
                    logits = self.forward(tokens, start, fed)
                    if self.shifted:
                        rows = [fed[0], *fed[:-1]]  # the first one stands for itself
                        logits = {p: logits[row] for p, row in zip(fed, rows, strict=True)}
                    drawn = {p: predict(logits[p]) for p in sub if tokens[start + p] is None}
                    chosen = choose({p: c for p, (_, c) in drawn.items()}, **self.rule)
                    for p in chosen:
                        tokens[start + p] = drawn[p][0]
                    result.forwards.append((tuple(fed), tuple(chosen)))
                    if ended():
                        return result
            logits = self.forward(tokens, start, range(size))
            result.forwards.append((tuple(range(size)), ()))
            if self.shifted:
                self.carry(tokens, logits, result)
                if ended():
                    return result

    def carry(self, tokens: list[int | None], logits: dict[int, Tensor], result: Decoded) -> None:
        """The last row of a finished block gives the token behind it."""
        token, _ = predict(logits[self.block_length - 1])
        result.carried[len(tokens)] = token
        tokens.append(token)

    def forward(
        self, tokens: list[int | None], start: int, fed: "list[int] | range"
    ) -> dict[int, Tensor]:
        """Logits by block position. K/V of what is fed goes to the store; every layer attends to
        all that it holds up to the block's end.
        """
        ids = [tokens[start + p] for p in fed]
        known = torch.tensor([MASK_TOKEN_ID if t is None else t for t in ids])
        hidden = self.model.model.embed_tokens(known)
        positions = torch.tensor([[start + p for p in fed]])
        cos, sin = self.model.model.rotary_emb(hidden[None], positions)
        for layer, module in enumerate(self.model.model.layers):
            attention, normed = module.self_attn, module.input_layernorm(hidden)
            shape = (1, len(fed), -1, attention.head_dim)
            q, k = attention.q_proj(normed).view(shape), attention.k_proj(normed).view(shape)
            if hasattr(attention, "q_norm"):
                q, k = attention.q_norm(q), attention.k_norm(k)
            q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
            v = attention.v_proj(normed).view(shape)[0]
            for index, p in enumerate(fed):
                self.store[layer][start + p] = (k[0, :, index], v[index])
            seen = [self.store[layer][i] for i in range(start + self.block_length)]
            keys, values = (torch.stack(part) for part in zip(*seen, strict=True))
            group = q.shape[1] // keys.shape[1]
            heads = []
            for head in range(q.shape[1]):
                scores = q[0, head] @ keys[:, head // group].T * attention.scaling
                heads.append(torch.softmax(scores, dim=-1) @ values[:, head // group])
            hidden = hidden + attention.o_proj(torch.cat(heads, dim=-1))
            hidden = hidden + module.mlp(module.post_attention_layernorm(hidden))
        logits = self.model.lm_head(self.model.model.norm(hidden)).float()
        return dict(zip(fed, logits, strict=True))
