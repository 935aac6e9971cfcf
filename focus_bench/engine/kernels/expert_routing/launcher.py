"""Which experts each token goes to, and the tokens sorted by expert; knows no expert's weights."""

from dataclasses import dataclass
from typing import Literal, Self

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.expert_routing.kernel import (
    count_kernel,
    router_kernel,
    sort_kernel,
)

_ROUTER_ROWS = 4  # tokens of a program, one of its warps each
_MAX_SORT_BLOCK = 8192


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """How experts are chosen; names as in the configurations of Hugging Face.

    `scoring` "softmax": the `top_k` highest logits, with their probabilities (Qwen3-MoE's rule).
    "sigmoid": p = sigmoid(logit); the `top_k` highest p + bias within the `topk_group` of
    `n_group` equal groups of experts whose two highest p + bias have the largest sum, with their p
    (LLaDA2's rule). Ties go to the lower id. `norm_topk_prob`: weights are divided by their sum +
    1e-20. Then they are multiplied with `routed_scaling_factor`.
    """

    scoring: Literal["softmax", "sigmoid"]
    top_k: int
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    def check(self, num_experts: int) -> None:
        """ValueError unless `num_experts` can be chosen from in this way."""
        if self.scoring not in ("softmax", "sigmoid"):
            raise ValueError(f"scoring is {self.scoring!r}; allowed are 'softmax' and 'sigmoid'")
        if not 1 <= self.topk_group <= self.n_group:
            raise ValueError(f"topk_group is {self.topk_group}; allowed are 1 to {self.n_group}")
        size, rest = divmod(num_experts, self.n_group)
        if not 1 <= self.top_k <= size * self.topk_group:
            raise ValueError(f"top_k is {self.top_k}; allowed are 1 to {size * self.topk_group}")
        if self.n_group == 1:
            return
        if self.scoring == "softmax":
            raise ValueError(f"n_group is {self.n_group}; softmax allows 1 only")
        if rest or size < 2 or num_experts & (num_experts - 1) or self.n_group & (self.n_group - 1):
            raise ValueError(
                f"n_group is {self.n_group} of {num_experts} experts; both must be powers of two,"
                " with at least 2 experts in a group"
            )


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Experts of T tokens, contiguous: `ids` int32 and `weights` float32, both [T, top_k].

    An id outside 0..E - 1 (the router writes -1 for rows that are no tokens) means no expert: its
    weight is not read, and it contributes nothing.
    """

    ids: Tensor
    weights: Tensor

    @property
    def top_k(self) -> int:
        """Choices of a token."""
        return int(self.ids.shape[1])

    @property
    def num_pairs(self) -> int:
        """Pairs of a token and a choice; pair p is choice p % top_k of token p // top_k."""
        return self.ids.numel()

    @classmethod
    def allocate(cls, num_tokens: int, top_k: int, device: torch.device) -> Self:
        """Room for `num_tokens` rows."""
        return cls(
            ids=torch.empty((num_tokens, top_k), device=device, dtype=torch.int32),
            weights=torch.empty((num_tokens, top_k), device=device, dtype=torch.float32),
        )

    def check(self, device: torch.device) -> None:
        """ValueError unless both tensors fit together and lie on `device`."""
        if self.ids.ndim != 2 or self.ids.shape[1] < 1:
            raise ValueError(f"ids must be [T, top_k], not {tuple(self.ids.shape)}")
        check_tensor("ids", self.ids, tuple(self.ids.shape), torch.int32, device)
        check_tensor("weights", self.weights, tuple(self.ids.shape), torch.float32, device)


@dataclass(frozen=True, kw_only=True)
class SortedPairs:
    """Pairs sorted by expert, then pair, and the tiles of at most `block_m` of them; all int32.

    The rows `offsets[e]`:`offsets[e + 1]` ([E + 1]) of `pairs` [num_pairs] belong to expert e;
    rows from `offsets[E]` on mean nothing. `tiles` [3, max_tiles(...)]: expert, first row and end
    row of the first `num_tiles` [1] tiles, in order of the rows; the others mean nothing. `counts`
    [E]: rows of each expert.
    """

    pairs: Tensor
    offsets: Tensor
    tiles: Tensor
    num_tiles: Tensor
    counts: Tensor
    block_m: int

    @classmethod
    def allocate(cls, num_pairs: int, num_experts: int, block_m: int, device: torch.device) -> Self:
        """Room for the sort of `num_pairs` pairs."""

        def room(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=torch.int32)

        return cls(
            pairs=room(num_pairs),
            offsets=room(num_experts + 1),
            tiles=room(3, max_tiles(num_pairs, num_experts, block_m)),
            num_tiles=room(1),
            counts=room(num_experts),
            block_m=block_m,
        )


def max_tiles(num_pairs: int, num_experts: int, block_m: int) -> int:
    """Tiles that the ragged rows of all experts need at most: full ones, and one for each expert.

    No tile is empty.
    """
    return min(num_pairs, num_pairs // block_m + num_experts)


def route(
    logits: Tensor,
    config: RouterConfig,
    *,
    bias: Tensor | None = None,
    slots: Tensor | None = None,
    out: Routing | None = None,
) -> Routing:
    """Choose experts for the rows of `logits` [T, E], float32, in one launch.

    `bias` [E], float32, is added to the sigmoid for the choice alone. `slots` [T], int32: rows
    with a negative one are no tokens, are not read and get ids -1 and weights 0. The choice is
    that of `reference.route` bit by bit. ValueError if the arguments do not fit.
    """
    if logits.ndim != 2 or logits.dtype != torch.float32:
        raise ValueError(f"logits: {logits.dtype} {tuple(logits.shape)}; float32 [T, E] is needed")
    num_rows, num_experts = logits.shape
    if logits.stride(1) != 1 and num_experts > 1:
        raise ValueError(f"logits must have contiguous rows, not strides {logits.stride()}")
    config.check(num_experts)
    if bias is not None:
        if config.scoring == "softmax":
            raise ValueError("bias: softmax allows none")
        check_tensor("bias", bias, (num_experts,), torch.float32, logits.device)
    if slots is not None:
        check_tensor("slots", slots, (num_rows,), torch.int32, logits.device)
    if out is None:
        out = Routing.allocate(num_rows, config.top_k, logits.device)
    out.check(logits.device)
    if out.ids.shape != (num_rows, config.top_k):
        raise ValueError(f"out.ids must be {(num_rows, config.top_k)}, not {tuple(out.ids.shape)}")
    if num_rows == 0:
        return out
    router_kernel[(triton.cdiv(num_rows, _ROUTER_ROWS),)](
        logits,
        bias,
        out.ids,
        out.weights,
        slots,
        num_rows,
        logits.stride(0),
        config.routed_scaling_factor,
        NUM_EXPERTS=num_experts,
        PADDED_EXPERTS=triton.next_power_of_2(num_experts),
        TOP_K=config.top_k,
        PADDED_K=triton.next_power_of_2(config.top_k),
        N_GROUP=config.n_group,
        TOPK_GROUP=config.topk_group,
        SIGMOID=config.scoring == "sigmoid",
        NORMALISE=config.norm_topk_prob,
        HAS_BIAS=bias is not None,
        HAS_SLOTS=slots is not None,
        BLOCK_T=_ROUTER_ROWS,
        num_warps=_ROUTER_ROWS,
    )
    return out


def sort_by_expert(
    ids: Tensor, num_experts: int, block_m: int, *, out: SortedPairs | None = None
) -> SortedPairs:
    """Sort the pairs of `ids` [T, top_k], int32, by expert, and cut them into tiles of `block_m`.

    Two launches; the order is that of `reference.sort_by_expert`. ValueError if shapes do not fit.
    """
    if ids.ndim != 2:
        raise ValueError(f"ids must be [T, top_k], not {tuple(ids.shape)}")
    check_tensor("ids", ids, tuple(ids.shape), torch.int32, ids.device)
    num_pairs = ids.numel()
    if num_experts < 1 or block_m < 1:
        raise ValueError(f"num_experts {num_experts}, block_m {block_m}: both must be at least 1")
    tiles = max_tiles(num_pairs, num_experts, block_m)
    if out is None:
        out = SortedPairs.allocate(num_pairs, num_experts, block_m, ids.device)
    check_tensor("out.pairs", out.pairs, (num_pairs,), torch.int32, ids.device)
    check_tensor("out.offsets", out.offsets, (num_experts + 1,), torch.int32, ids.device)
    check_tensor("out.tiles", out.tiles, (3, tiles), torch.int32, ids.device)
    check_tensor("out.num_tiles", out.num_tiles, (1,), torch.int32, ids.device)
    check_tensor("out.counts", out.counts, (num_experts,), torch.int32, ids.device)
    if out.block_m != block_m:
        raise ValueError(f"out.block_m is {out.block_m}; {block_m} is asked for")
    block = min(max(int(triton.next_power_of_2(max(1, num_pairs))), 256), _MAX_SORT_BLOCK)
    num_warps = min(16, max(4, block // 512))
    count_kernel[(num_experts,)](
        ids, out.counts, ids.shape[0], TOP_K=ids.shape[1], BLOCK=block, num_warps=num_warps
    )
    sort_kernel[(num_experts,)](
        ids,
        out.counts,
        out.pairs,
        out.offsets,
        out.tiles,
        out.num_tiles,
        ids.shape[0],
        tiles,
        TOP_K=ids.shape[1],
        NUM_EXPERTS=num_experts,
        PADDED_EXPERTS=triton.next_power_of_2(num_experts),
        BLOCK_M=block_m,
        BLOCK=block,
        BLOCK_TILES=128,
        num_warps=num_warps,
    )
    return out


def check_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """ValueError unless `tensor` is a contiguous one of this shape, dtype and device."""
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ValueError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}; {dtype} {shape} is needed")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}; {device} is needed")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, not of strides {tensor.stride()}")
