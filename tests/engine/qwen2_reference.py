"""transformers' Qwen2, the outside reference of Fast-dLLM v2's family, and folders in its shape."""

import json
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import qwen2

MASK_TOKEN_ID = 96
STOP_TOKEN_ID = 97


def build_qwen2(
    *,
    seed: int = 0,
    num_layers: int = 3,
    std: float = 0.3,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Qwen2ForCausalLM:
    """A small Qwen2 (4 query heads per KV head) with random weights, norms and biases included."""
    config = Qwen2Config(
        vocab_size=101,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=num_layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        eos_token_id=STOP_TOKEN_ID,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
    )
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    random = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.uniform_(-1.0, 1.0, generator=random)
        elif parameter.ndim == 1:
            parameter.uniform_(0.5, 1.5, generator=random)
        else:
            parameter.normal_(0.0, std, generator=random)
    for parameter in model.parameters():  # as from_pretrained does: rotary stays in float32
        parameter.data = parameter.data.to(dtype)
    return model


def qwen2_spec(model: Qwen2ForCausalLM) -> ModelSpec:
    """The ModelSpec of `build_qwen2`'s model, written down by hand."""
    return ModelSpec(
        name="qwen2-reference",
        family="fast-dllm-v2",
        num_layers=len(model.model.layers),
        hidden_size=48,
        num_q_heads=8,
        num_kv_heads=2,
        head_dim=6,
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


def qwen2_model(reference: Qwen2ForCausalLM, **spec_changes: object) -> qwen2.Qwen2Model:
    """The engine's model with the reference's weights; without stop tokens unless asked for."""
    spec = qwen2_spec(reference).replace(**{"stop_token_ids": (), **spec_changes})
    state = reference.state_dict()
    return qwen2.build(spec, lambda name: state[name])


def random_qwen2(
    *, head_dim: int = 16, num_layers: int = 2, device: str = "cpu", dtype: str = "float32"
) -> qwen2.Qwen2Model:
    """A random model of the family whose heads are wide enough for the kernels."""
    spec = qwen2_spec(build_qwen2(num_layers=num_layers)).replace(
        hidden_size=8 * head_dim, head_dim=head_dim, stop_token_ids=(), dtype=dtype
    )
    shapes = qwen2.tensor_shapes(spec)
    random = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.rand(shape, generator=random) + 0.5
        if name.endswith("norm.weight")
        else torch.randn(shape, generator=random) * 0.2
        for name, shape in shapes.items()
    }
    target = {"device": device, "dtype": getattr(torch, dtype)}
    return qwen2.build(spec, lambda name: tensors[name].to(**target))


def write_fast_dllm_folder(
    folder: Path, reference: Qwen2ForCausalLM, *, max_shard_size: str = "1GB"
) -> None:
    """A folder in the shape of Fast_dLLM_v2_7B: Qwen2's tensors, its own type and block length, and
    the mask token in the tokenizer's files only.
    """
    reference.save_pretrained(folder, max_shard_size=max_shard_size)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        "bd_size": 32,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "added_tokens.json").write_text(json.dumps({"|<MASK>|": MASK_TOKEN_ID}))
