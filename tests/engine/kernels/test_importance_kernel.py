"""The importance kernels against plain torch, in the precision of a float64 reference."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from focus_bench.engine.kernels.importance import reference
from focus_bench.engine.kernels.importance.launcher import (
    MaskedTokens,
    importance_delta,
    workspace_shape,
)

ON_GPU = torch.cuda.is_available()
NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    q0: Tensor
    q1: Tensor
    keys0: Tensor
    keys1: Tensor
    masked: MaskedTokens

    def run(self, workspace: Tensor | None = None) -> Tensor:
        """The kernels' result in a poisoned output."""
        return importance_delta(
            self.q0,
            self.q1,
            self.keys0,
            self.keys1,
            self.masked,
            out=self.poisoned_out(),
            workspace=workspace,
        )

    def expected(self) -> Tensor:
        """The reference in float64, on the same rounded inputs."""
        return reference.importance_delta(
            self.q0.double(),
            self.q1.double(),
            self.keys0.double(),
            self.keys1.double(),
            self.masked,
            out=self.poisoned_out().double(),
        )

    def poisoned_out(self) -> Tensor:
        shape = (self.masked.num_sequences, self.masked.block_length)
        return torch.full(shape, NAN, dtype=torch.float32, device=self.q0.device)


def make_inputs(
    counts: list[int],
    *,
    device: torch.device,
    dtype: torch.dtype,
    block_length: int = 32,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    seed: int = 0,
) -> Inputs:
    """Sequences with `counts` masked tokens among unmasked fed ones and NaN-filled cache slots.

    Queries are slices of a wider array, keys of a cache with every second row of another layer;
    what lies behind the last masked token is out of every range.
    """
    random = torch.Generator().manual_seed(seed)
    num_q_heads, num_kv_heads = heads
    tokens, columns, num_fed = [], [], 0
    for count in counts:
        fed = min(block_length, count + 2)
        chosen = torch.randperm(fed, generator=random)[:count].sort().values
        offset = torch.randint(block_length - fed + 1, (), generator=random)
        tokens.append(num_fed + chosen)
        columns.append(offset + chosen)
        num_fed += fed
    token = torch.cat([*tokens, torch.full((3,), 2**30)])
    column = torch.cat([*columns, torch.full((3,), 2**30)])
    num_masked = sum(counts)
    slot = torch.full_like(token, 2**30)
    slot[:num_masked] = torch.randperm(2 * num_masked + 5, generator=random)[:num_masked]

    def queries() -> Tensor:
        wide = torch.full((num_fed, num_q_heads + 2, head_dim), NAN)
        wide[:, :num_q_heads] = 2 * torch.randn(num_fed, num_q_heads, head_dim, generator=random)
        return wide.to(device, dtype)[:, :num_q_heads]

    def keys() -> Tensor:
        cache = torch.full((2 * num_masked + 5, 2, num_kv_heads, head_dim), NAN)
        rows = torch.randn(num_masked, num_kv_heads, head_dim, generator=random)
        cache[slot[:num_masked], 0] = rows
        return cache.to(device, dtype)[:, 0]

    bounds = torch.tensor([0, *counts]).cumsum(0)
    q0, q1, keys0, keys1 = queries(), queries(), keys(), keys()
    masked = MaskedTokens(
        cu_masked=bounds.to(device, torch.int32),
        token=token.to(device, torch.int32),
        slot=slot.to(device, torch.int32),
        column=column.to(device, torch.int32),
        block_length=block_length,
    )
    return Inputs(q0=q0, q1=q1, keys0=keys0, keys1=keys1, masked=masked)


def assert_close(inputs: Inputs) -> None:
    """Equal to the reference within rounding of sums over all heads and queries; 0 elsewhere."""
    ours, expected = inputs.run().cpu().double(), inputs.expected().cpu()
    assert torch.isfinite(ours).all()
    num_heads = inputs.q0.shape[1]
    assert (ours - expected).abs().max().item() <= 2e-6 * num_heads * inputs.masked.block_length
    assert (ours[expected == 0] == 0).all()
    tolerance = 1e-5 if inputs.q0.dtype is torch.float32 else 1e-4
    assert (ours - expected).norm().item() <= tolerance * expected.norm().item()


CI_CASES = [
    ([5], 32, (4, 2), 16),
    ([0, 1, 17, 2], 32, (4, 4), 16),
    ([3, 0, 7], 8, (7, 1), 48),
    ([4], 4, (6, 1), 80),
    ([1], 1, (1, 1), 16),
    ([13, 6], 13, (2, 2), 96),
]
GPU_CASES = [
    ([64, 0, 33, 1, 64], 64, (28, 4), 256),
    ([32, 19, 20, 1, 2, 0, 31, 9], 32, (32, 8), 128),
    (list(range(65)), 64, (6, 6), 48),
    ([16] * 40, 16, (12, 2), 80),
    ([19] * 256, 32, (32, 8), 128),
]


@pytest.mark.parametrize(
    ("counts", "block_length", "heads", "head_dim"), CI_CASES + (GPU_CASES if ON_GPU else [])
)
def test_equals_the_reference(
    counts: list[int],
    block_length: int,
    heads: tuple[int, int],
    head_dim: int,
    kernel_device: torch.device,
    kernel_dtype: torch.dtype,
) -> None:
    assert_close(
        make_inputs(
            counts,
            device=kernel_device,
            dtype=kernel_dtype,
            block_length=block_length,
            heads=heads,
            head_dim=head_dim,
        )
    )


def test_many_rows_go_through_several_tiles(
    kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    # 40 queries of 4 heads are 160 rows.
    assert_close(
        make_inputs([40], device=kernel_device, dtype=kernel_dtype, block_length=64, heads=(4, 1))
    )


def test_one_and_two_masked_tokens_are_exactly_even(
    kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    # One takes all the weight, and pooling makes two equal: no layer differs from another.
    inputs = make_inputs([1, 2, 2], device=kernel_device, dtype=kernel_dtype, heads=(4, 2))
    workspace = torch.full(workspace_shape(inputs.masked, 2), NAN, device=kernel_device)
    assert torch.equal(inputs.run(workspace), torch.zeros(3, 32, device=kernel_device))
    # Per KV head: two query heads, each of whose queries spreads a weight of 1 evenly.
    assert (workspace[0, :, :, 0] == 2).all()
    assert (workspace[1:, :, :, :2] == 2).all()


def test_no_sequence_and_no_masked_token(
    kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    for counts in ([], [0], [0, 0, 0]):
        inputs = make_inputs(counts, device=kernel_device, dtype=kernel_dtype)
        result = inputs.run()
        assert result.shape == (len(counts), 32)
        assert (result == 0).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy interprets the kernel
@pytest.mark.parametrize("where", ["query", "key"])
def test_a_nan_reaches_its_sequence_only(
    where: str, kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    inputs = make_inputs([4, 5, 3], device=kernel_device, dtype=kernel_dtype)
    index = int(inputs.masked.cu_masked[1]) + 2
    if where == "query":
        inputs.q1[int(inputs.masked.token[index]), 3, 5] = NAN
    else:
        inputs.keys1[int(inputs.masked.slot[index]), 1, 5] = NAN
    result = inputs.run()
    columns = inputs.masked.column[4:9].long()
    assert result[1, columns].isnan().all()
    assert result[1].isnan().sum() == 5
    assert torch.isfinite(result[[0, 2]]).all()


def test_large_scores_do_not_overflow(
    kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    inputs = make_inputs([6, 3], device=kernel_device, dtype=kernel_dtype)
    inputs.q0.mul_(1000)
    inputs.q1.mul_(-1000)
    assert torch.isfinite(inputs.run()).all()


def test_sequences_do_not_depend_on_each_other(
    kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    together = make_inputs([6, 3], device=kernel_device, dtype=kernel_dtype)
    alone = MaskedTokens(
        cu_masked=together.masked.cu_masked[1:].contiguous(),
        token=together.masked.token,
        slot=together.masked.slot,
        column=together.masked.column,
        block_length=32,
    )
    second = importance_delta(
        together.q0,
        together.q1,
        together.keys0,
        together.keys1,
        alone,
        out=torch.full((1, 32), NAN, device=kernel_device),
    )
    assert torch.equal(second[0], together.run()[1])


def test_repeats_give_identical_bits(
    kernel_device: torch.device, kernel_dtype: torch.dtype, num_repeats: int
) -> None:
    inputs = make_inputs([9, 0, 12], device=kernel_device, dtype=kernel_dtype)
    first = inputs.run()
    assert all(torch.equal(inputs.run(), first) for _ in range(num_repeats - 1))


@pytest.mark.parametrize("name", ["head_dim", "out", "token", "q1", "keys1"])
def test_refuses_by_name(name: str, kernel_device: torch.device) -> None:
    head_dim = 8 if name == "head_dim" else 16
    inputs = make_inputs([2], device=kernel_device, dtype=torch.float32, head_dim=head_dim)
    tensors = {key: getattr(inputs, key) for key in ("q0", "q1", "keys0", "keys1")}
    masked, out = inputs.masked, inputs.poisoned_out()
    if name == "out":
        out = out.double()
    elif name == "token":
        masked = MaskedTokens(
            cu_masked=masked.cu_masked,
            token=masked.token.long(),
            slot=masked.slot,
            column=masked.column,
            block_length=32,
        )
    elif name == "q1":
        tensors["q1"] = tensors["q1"].transpose(1, 2).contiguous().transpose(1, 2)
    elif name == "keys1":
        tensors["keys1"] = tensors["keys1"].bfloat16()
    with pytest.raises(ValueError, match=f"^{name}: "):
        importance_delta(**tensors, masked=masked, out=out)
