"""transformers' Qwen3 as an outside reference: no cache, explicit 4-D mask, full recomputation."""

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from focus_bench.core.model_spec import ModelSpec

MASK_TOKEN_ID = 96
STOP_TOKEN_ID = 97


def build_qwen3(
    *,
    seed: int = 0,
    num_layers: int = 3,
    std: float = 0.3,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Qwen3ForCausalLM:
    """A small Qwen3 (4 query heads per KV head) with random weights, norms included."""
    config = Qwen3Config(
        vocab_size=101,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=num_layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).eval().requires_grad_(False)
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.uniform_(0.5, 1.5, generator=random)
        else:
            parameter.normal_(0.0, std, generator=random)
    # As from_pretrained does, unlike Module.to: rotary frequencies stay in float32.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def spec_of(model: Qwen3ForCausalLM) -> ModelSpec:
    """The ModelSpec of `build_qwen3`'s model, written down by hand."""
    return ModelSpec(
        name="qwen3-reference",
        num_layers=len(model.model.layers),
        hidden_size=48,
        num_q_heads=8,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=80,
        vocab_size=101,
        mask_token_id=MASK_TOKEN_ID,
        stop_token_ids=(STOP_TOKEN_ID,),
        rope_theta=10000.0,
        rms_eps=1e-6,
        max_position_embeddings=512,
        tie_word_embeddings=model.config.tie_word_embeddings,
        dtype=str(model.dtype).removeprefix("torch."),
    )


def block_causal_mask(num_tokens: int, block_length: int) -> Tensor:
    """Additive float mask [1, 1, T, T]: 0 where the key's block is not behind the query's."""
    block = torch.arange(num_tokens) // block_length
    allowed = block[None, :] <= block[:, None]
    mask = torch.zeros(num_tokens, num_tokens)
    return mask.masked_fill(~allowed, torch.finfo(torch.float32).min)[None, None]


def full_logits(
    model: Qwen3ForCausalLM, token_ids: np.ndarray | list[int], block_length: int
) -> Tensor:
    """Float32 logits [T, vocab] of one sequence, recomputed whole under the block-causal mask."""
    ids = torch.as_tensor(np.asarray(token_ids, dtype=np.int64))[None]
    mask = block_causal_mask(ids.shape[1], block_length).to(model.dtype)
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask, use_cache=False)
    return output.logits[0].float()
