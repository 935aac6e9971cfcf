"""Shape of a mixture-of-experts feed-forward and of its router, and how config.json spells them.

Knows no weights and no attention; ModelSpec holds one where a model has experts.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from focus_bench.core.errors import UsageError, check_choice, check_range

ROUTERS = ("softmax", "sigmoid")
ROUTER_BYTES = 4  # of one router weight: in 16 bits the choice of experts would change


@dataclass(frozen=True, kw_only=True)
class ExpertSpec:
    """The feed-forward of all layers but the first `num_dense_layers`, which have a dense one.

    Each token goes through `experts_per_token` of `num_experts` SwiGLU networks of width
    `expert_size`, and through a shared one of width `shared_size` (0: none). The router's
    probabilities are a softmax over the experts or a sigmoid of each; `has_router_bias`: a bias
    that only moves the choice. Experts are chosen from the `num_kept_groups` best of `num_groups`
    equal groups. `normalise`: the chosen probabilities are divided by their sum; they are
    multiplied by `routed_scale`.
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    shared_size: int = 0
    num_dense_layers: int = 0
    router: str = "softmax"
    has_router_bias: bool = False
    num_groups: int = 1
    num_kept_groups: int = 1
    normalise: bool = True
    routed_scale: float = 1.0

    def __post_init__(self) -> None:
        for field in ("num_experts", "experts_per_token", "expert_size", "num_groups"):
            check_range(f"model {field}", getattr(self, field), low=1)
        for field in ("shared_size", "num_dense_layers"):
            check_range(f"model {field}", getattr(self, field), low=0)
        check_choice("model router", self.router, ROUTERS)
        check_range("model num_kept_groups", self.num_kept_groups, low=1, high=self.num_groups)
        if self.num_experts % self.num_groups:
            raise UsageError(
                "model num_experts", self.num_experts, f"multiples of {self.num_groups} groups"
            )
        if self.num_groups > 1 and self.group_size < 2:
            raise UsageError("model num_groups", self.num_groups, "groups of at least 2 experts")
        if self.router == "softmax" and (self.num_groups > 1 or self.has_router_bias):
            raise UsageError("model router", self.router, "sigmoid (with groups or a bias)")
        reachable = self.num_kept_groups * self.group_size
        check_range("model experts_per_token", self.experts_per_token, low=1, high=reachable)
        check_range("model routed_scale", self.routed_scale, low=0.0, low_open=True)

    @property
    def group_size(self) -> int:
        """Experts of one group."""
        return self.num_experts // self.num_groups

    @property
    def token_width(self) -> int:
        """Feed-forward channels that one token goes through, shared ones included."""
        return self.experts_per_token * self.expert_size + self.shared_size

    def replace(self, **changes: Any) -> "ExpertSpec":
        """A copy with some fields changed (validated again)."""
        return dataclasses.replace(self, **changes)

    def router_params(self, hidden_size: int) -> int:
        """Parameters of one layer's router, all of ROUTER_BYTES."""
        return self.num_experts * (hidden_size + int(self.has_router_bias))

    def layer_params(self, hidden_size: int, *, active_only: bool = False) -> int:
        """Parameters of one layer's feed-forward, router included; `active_only`: of one token's
        experts only.
        """
        experts = self.experts_per_token if active_only else self.num_experts
        width = experts * self.expert_size + self.shared_size
        return 3 * hidden_size * width + self.router_params(hidden_size)


def qwen3_moe_experts(config: Mapping[str, Any], *, name: str) -> ExpertSpec:
    """The experts of a ``config.json`` of SDAR-30B-A3B or Qwen3-MoE.

    Raises UsageError naming a key that is missing or not supported.
    """
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        keys = ("mlp_only_layers", "decoder_sparse_step")
        raise UsageError(
            f"{name} {' and '.join(keys)}", [config.get(k) for k in keys], "experts in every layer"
        )
    return ExpertSpec(
        num_experts=_number(config, name, "num_experts", "num_local_experts"),
        experts_per_token=_number(config, name, "num_experts_per_tok"),
        expert_size=_number(config, name, "moe_intermediate_size"),
        normalise=bool(config.get("norm_topk_prob", False)),
    )


def llada2_experts(config: Mapping[str, Any], *, name: str) -> ExpertSpec:
    """The experts of a ``config.json`` of LLaDA2.0 (its router: see ExpertSpec).

    Raises UsageError naming a key that is missing or not supported.
    """
    for key, allowed in (("score_function", "sigmoid"), ("router_dtype", "fp32")):
        if config.get(key, allowed) != allowed:
            raise UsageError(f"{name} {key}", config[key], allowed)
    expert_size = _number(config, name, "moe_intermediate_size")
    return ExpertSpec(
        num_experts=_number(config, name, "num_experts"),
        experts_per_token=_number(config, name, "num_experts_per_tok"),
        expert_size=expert_size,
        shared_size=expert_size * int(config.get("num_shared_experts") or 0),
        num_dense_layers=int(config.get("first_k_dense_replace") or 0),
        router="sigmoid",
        has_router_bias=bool(config.get("moe_router_enable_expert_bias", True)),
        num_groups=int(config.get("n_group") or 1),
        num_kept_groups=int(config.get("topk_group") or 1),
        normalise=bool(config.get("norm_topk_prob", True)),
        routed_scale=float(config.get("routed_scaling_factor", 1.0)),
    )


def _number(config: Mapping[str, Any], name: str, *keys: str) -> int:
    """The first of `keys` that is there, as a whole number."""
    value = next((config[key] for key in keys if key in config), None)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} config.json {keys[0]}", value, "a whole number")
    return value
