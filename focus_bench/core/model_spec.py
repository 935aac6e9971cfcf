"""Dimensions and special tokens of a model, read from a Hugging Face config or a named preset.

Knows no weights and no framework; costs, the engine and the simulator all read this one record.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from focus_bench.core.errors import UsageError, check_range
from focus_bench.core.expert_spec import (
    ROUTER_BYTES,
    ExpertSpec,
    llada2_experts,
    qwen3_moe_experts,
)

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Shape of a block-diffusion model.

    `family` says what its layers are: "sdar" (Qwen3: QK norm, no bias) or "fast-dllm-v2" (Qwen2.5:
    QKV bias, no QK norm; its logits are shifted) or "llada2" (SDAR's layers, but that only the
    first `rotary_share` of each head is rotated). `experts`: the feed-forward of a mixture of
    experts, None in a dense model; `intermediate_size` is the width of dense layers.
    `tokenizer_size` is the number of ids that the tokenizer knows; ids from there to `vocab_size`
    are padding and never decoded (None: no tokenizer, so no padding).
    """

    name: str
    num_layers: int
    hidden_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    mask_token_id: int
    stop_token_ids: tuple[int, ...] = ()
    rope_theta: float = 1e6
    rms_eps: float = 1e-6
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = False
    block_length: int | None = None
    dtype: str = "bfloat16"
    tokenizer_size: int | None = None
    family: str = "sdar"
    rotary_share: float = 1.0
    experts: ExpertSpec | None = None

    def __post_init__(self) -> None:
        for field in (
            "num_layers",
            "hidden_size",
            "num_q_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "max_position_embeddings",
        ):
            check_range(f"model {field}", getattr(self, field), low=1)
        if self.num_q_heads % self.num_kv_heads:
            raise UsageError(
                "model num_q_heads", self.num_q_heads, f"multiples of {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise UsageError("model head_dim", self.head_dim, "even numbers (rotary pairs)")
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            allowed = f"shares that leave an even number of {self.head_dim} channels"
            raise UsageError("model rotary_share", self.rotary_share, allowed)
        if self.num_dense_layers > self.num_layers:
            allowed = f"at most {self.num_layers} (num_layers)"
            raise UsageError("model num_dense_layers", self.num_dense_layers, allowed)
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise UsageError(
                "mask_token_id", self.mask_token_id, f"0 to {self.vocab_size - 1} (vocab_size - 1)"
            )
        if self.dtype not in DTYPE_BYTES:
            raise UsageError("dtype", self.dtype, ", ".join(DTYPE_BYTES))

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one weight element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def q_size(self) -> int:
        """Width of the query projection."""
        return self.num_q_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the key (or value) projection."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """KV-cache bytes of one token over all layers, keys and values."""
        return 2 * self.num_layers * self.kv_size * self.dtype_bytes

    @property
    def shifted_logits(self) -> bool:
        """Whether the logits of row i decode position i + 1, as Fast-dLLM v2's do."""
        return self.family == "fast-dllm-v2"

    @property
    def has_qkv_bias(self) -> bool:
        """Whether query, key and value have a bias, as Qwen2.5's have, in place of a QK norm."""
        return self.family == "fast-dllm-v2"

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that rotary embedding turns, its first ones."""
        return int(self.head_dim * self.rotary_share)

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense feed-forward; they come before those with experts."""
        return self.num_layers if self.experts is None else self.experts.num_dense_layers

    @property
    def token_width(self) -> int:
        """Feed-forward channels that one token goes through, in the layer that has the most."""
        dense = self.intermediate_size if self.num_dense_layers else 0
        return max(dense, 0 if self.experts is None else self.experts.token_width)

    @property
    def mean_token_width(self) -> int:
        """Feed-forward channels that one token goes through, mean over layers, rounded."""
        experts = 0 if self.experts is None else self.experts.token_width
        total = self.num_dense_layers * self.intermediate_size + self.num_expert_layers * experts
        return round(total / self.num_layers)

    @property
    def attention_params(self) -> int:
        """Parameters of one layer but for its feed-forward, norms included."""
        vectors = self.q_size + 2 * self.kv_size if self.has_qkv_bias else 2 * self.head_dim
        matrices = self.hidden_size * (2 * self.q_size + 2 * self.kv_size)
        return matrices + vectors + 2 * self.hidden_size

    @property
    def layer_params(self) -> int:
        """Parameters of one layer with a dense feed-forward, norms included."""
        return self.attention_params + 3 * self.hidden_size * self.intermediate_size

    @property
    def num_params(self) -> int:
        """All parameters, embeddings and head included."""
        return self._count_params(active_only=False)

    @property
    def num_active_params(self) -> int:
        """Parameters that one token goes through: of its experts only, but embeddings whole."""
        return self._count_params(active_only=True)

    def _count_params(self, *, active_only: bool) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        total = embeddings + self.num_dense_layers * self.layer_params + self.hidden_size
        if self.experts is not None:
            experts = self.experts.layer_params(self.hidden_size, active_only=active_only)
            total += self.num_expert_layers * (self.attention_params + experts)
        return total

    @property
    def num_expert_layers(self) -> int:
        """Layers with experts."""
        return self.num_layers - self.num_dense_layers

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights: in `dtype`, but for the routers, which stay in float32."""
        routers = 0
        if self.experts is not None:
            routers = self.num_expert_layers * self.experts.router_params(self.hidden_size)
        return (self.num_params - routers) * self.dtype_bytes + routers * ROUTER_BYTES

    def replace(self, **changes: Any) -> "ModelSpec":
        """A copy with some fields changed (validated again)."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        *,
        name: str,
        generation_config: Mapping[str, Any] | None = None,
        tokenizer_size: int | None = None,
        tokenizer_mask_id: int | None = None,
        mask_token_id: int | None = None,
    ) -> "ModelSpec":
        """Read a ``config.json`` (already parsed) of one of the families.

        The mask id comes from the config (``mask_token_id``), the tokenizer, or `mask_token_id`
        (the flag); if config and tokenizer disagree the error names both. Stop ids are the union
        of config and generation config. Raises UsageError naming a missing or unsupported key.
        """
        model_type = str(config.get("model_type", "sdar"))
        family = _FAMILY_OF_TYPE.get(model_type)
        if family is None:
            raise UsageError(f"{name} model_type", model_type, ", ".join(_FAMILY_OF_TYPE))
        if config.get("rope_scaling"):
            raise UsageError(f"{name} rope_scaling", config["rope_scaling"], "none")
        rope = config.get("rope_parameters") or {}
        if rope.get("rope_type", "default") != "default":
            raise UsageError(f"{name} rope_parameters rope_type", rope["rope_type"], "default")
        if config.get("attention_bias") and family == "sdar":
            raise UsageError(f"{name} attention_bias", True, "false (Qwen3-type layers)")
        for key in ("use_sliding_window", "use_qkv_bias", "use_bias"):
            if config.get(key):
                raise UsageError(f"{name} {key}", config[key], "false")
        if config.get("hidden_act", "silu") != "silu":
            raise UsageError(f"{name} hidden_act", config["hidden_act"], "silu")

        def need(key: str) -> int:
            value = config.get(key)
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{name} config.json {key}", value, "a whole number")
            return value

        config_mask = config.get("mask_token_id")
        if (
            config_mask is not None
            and tokenizer_mask_id is not None
            and config_mask != tokenizer_mask_id
            and mask_token_id is None
        ):
            raise UsageError(
                "mask_token_id",
                f"{config_mask} in config.json, {tokenizer_mask_id} in the tokenizer",
                "the same id in both, or --mask-token-id",
            )
        mask = mask_token_id if mask_token_id is not None else config_mask
        mask = tokenizer_mask_id if mask is None else mask
        if mask is None:
            raise UsageError(f"{name} mask_token_id", None, "an id in config.json, or the flag")
        stops: list[int] = []
        for source in (config, generation_config or {}):
            ids = source.get("eos_token_id")
            for token in ids if isinstance(ids, list) else [ids]:
                if token is not None and token not in stops:
                    stops.append(int(token))
        read_experts = _EXPERTS_OF_TYPE.get(model_type)
        num_q_heads = need("num_attention_heads")
        hidden_size = need("hidden_size")
        lengths = [config.get(key) for key in ("block_size", "block_length", "bd_size")]
        block_length = next((length for length in lengths if length is not None), None)
        dtype = str(config.get("dtype", config.get("torch_dtype", "bfloat16")))
        return cls(
            name=name,
            num_layers=need("num_hidden_layers"),
            hidden_size=hidden_size,
            num_q_heads=num_q_heads,
            num_kv_heads=int(config.get("num_key_value_heads") or num_q_heads),
            head_dim=int(config.get("head_dim") or hidden_size // num_q_heads),
            intermediate_size=need("intermediate_size"),
            vocab_size=need("vocab_size"),
            mask_token_id=int(mask),
            stop_token_ids=tuple(stops),
            rope_theta=float(config.get("rope_theta", rope.get("rope_theta", 1e6))),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            max_position_embeddings=int(config.get("max_position_embeddings", 32768)),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            block_length=None if block_length is None else int(block_length),
            dtype=dtype.removeprefix("torch."),
            tokenizer_size=tokenizer_size,
            family=family,
            rotary_share=float(
                config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0))
            ),
            experts=None if read_experts is None else read_experts(config, name=name),
        )


# model_type in config.json -> family.
_FAMILY_OF_TYPE = {
    "sdar": "sdar",
    "qwen3": "sdar",
    "sdar_moe": "sdar",
    "qwen3_moe": "sdar",
    "llada2_moe": "llada2",
    "Fast_dLLM_Qwen": "fast-dllm-v2",
}
_EXPERTS_OF_TYPE = {
    "sdar_moe": qwen3_moe_experts,
    "qwen3_moe": qwen3_moe_experts,
    "llada2_moe": llada2_experts,
}


def _sdar(name: str, *, layers: int, hidden: int, q_heads: int, intermediate: int) -> ModelSpec:
    return ModelSpec(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_q_heads=q_heads,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=intermediate,
        vocab_size=151936,
        mask_token_id=151669,
        stop_token_ids=(151645, 151643),
        rope_theta=1e6,
    )


def _llada2(
    name: str, *, layers: int, hidden: int, q_heads: int, intermediate: int, expert_size: int
) -> ModelSpec:
    return ModelSpec(
        name=name,
        family="llada2",
        num_layers=layers,
        hidden_size=hidden,
        num_q_heads=q_heads,
        num_kv_heads=4,
        head_dim=128,
        intermediate_size=intermediate,
        vocab_size=157184,
        mask_token_id=156895,
        stop_token_ids=(156892,),
        rope_theta=6e5,
        rotary_share=0.5,
        experts=ExpertSpec(
            num_experts=256,
            experts_per_token=8,
            expert_size=expert_size,
            shared_size=expert_size,
            num_dense_layers=1,
            router="sigmoid",
            has_router_bias=True,
            num_groups=8,
            num_kept_groups=4,
            routed_scale=2.5,
        ),
    )


# The trained model in the package, which is what runs where no --model is given.
DEFAULT_MODEL = "focus-tiny"
DUMMY_MODEL = "dummy-tiny"
BUNDLED_MODELS = (DEFAULT_MODEL,)  # names of the checkpoint folders that come with the package

PRESETS: dict[str, ModelSpec] = {
    # Small enough for a laptop, deep enough for eviction to pay: 8 layers, 6.2 M parameters.
    # Its vocabulary is the byte tokenizer's (256 bytes and the special tokens), padded to 320.
    DUMMY_MODEL: ModelSpec(
        name=DUMMY_MODEL,
        num_layers=8,
        hidden_size=256,
        num_q_heads=8,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=768,
        vocab_size=320,
        mask_token_id=256,
        stop_token_ids=(257,),
        max_position_embeddings=4096,
        dtype="float32",
        tokenizer_size=260,
    ),
    "sdar-8b": _sdar("sdar-8b", layers=36, hidden=4096, q_heads=32, intermediate=12288),
    "sdar-4b": _sdar("sdar-4b", layers=36, hidden=2560, q_heads=32, intermediate=9728),
    "sdar-1.7b": _sdar("sdar-1.7b", layers=28, hidden=2048, q_heads=16, intermediate=6144),
    # intermediate_size is what its config.json says; no layer of it is dense.
    "sdar-30b-a3b": _sdar(
        "sdar-30b-a3b", layers=48, hidden=2048, q_heads=32, intermediate=6144
    ).replace(
        num_kv_heads=4,
        experts=ExpertSpec(num_experts=128, experts_per_token=8, expert_size=768),
    ),
    "llada2-mini": _llada2(
        "llada2-mini", layers=20, hidden=2048, q_heads=16, intermediate=5120, expert_size=512
    ),
    "llada2-flash": _llada2(
        "llada2-flash", layers=32, hidden=4096, q_heads=32, intermediate=9216, expert_size=1024
    ),
    "fast-dllm-v2-7b": ModelSpec(
        name="fast-dllm-v2-7b",
        family="fast-dllm-v2",
        num_layers=28,
        hidden_size=3584,
        num_q_heads=28,
        num_kv_heads=4,
        head_dim=128,
        intermediate_size=18944,
        vocab_size=152064,
        mask_token_id=151665,
        stop_token_ids=(151645,),
        rope_theta=1e6,
        block_length=32,
    ),
}
