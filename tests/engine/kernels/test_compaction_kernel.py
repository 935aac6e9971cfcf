"""The compaction kernel against boolean indexing: every bit is moved, none is computed."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from focus_bench.engine.kernels.compaction import reference
from focus_bench.engine.kernels.compaction.launcher import (
    CompactionOutputs,
    CompactionStates,
    compact,
)

ON_GPU = torch.cuda.is_available()
POISON = -77
FLOATING = ("hidden", "q", "cos", "sin")


@dataclass(frozen=True, kw_only=True)
class Case:
    kept: Tensor
    fed: Tensor
    masked: Tensor
    states: CompactionStates
    capacity: int

    def run(self) -> CompactionOutputs:
        """The kernel's result in poisoned outputs."""
        outputs = CompactionOutputs.empty(self.states, self.fed.shape[0], self.capacity)
        for tensor in vars(outputs).values():
            tensor.fill_(POISON)
        num_fed = self.fed.sum(dim=1)
        compact(
            self.kept,
            self.fed,
            self.masked,
            self.kept.sum(dim=1).int(),
            (self.kept & self.masked).sum(dim=1).int(),
            torch.cat([num_fed.new_zeros(1), num_fed.cumsum(dim=0)]).int(),
            self.states,
            outputs,
        )
        return outputs

    def assert_equals_the_reference(self) -> None:
        """Kept rows bit for bit; what lies behind them as promised, the rest not written."""
        ours = self.run()
        rule = reference.compact(self.kept, self.fed, self.masked, self.states, self.capacity)
        total = int(rule.totals[0])
        for name in (*FLOATING, "positions"):
            output, wanted = getattr(ours, name), getattr(rule, name)
            assert torch.equal(output[:total], wanted[:total]), name
            assert (output[total:] == POISON).all(), name
        for name in ("slots", "cu_kept", "head_rows", "totals"):
            assert torch.equal(getattr(ours, name), getattr(rule, name)), name


def make_case(
    num_sequences: int,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    block_length: int = 8,
    hidden: int = 40,
    heads: tuple[int, int] = (3, 16),
    rope: int = 16,
    spare: int = 5,
    seed: int = 0,
) -> Case:
    """Random masks; some sequences feed nothing, some keep nothing, some keep all. The rows of the
    states are strided and lie between NaNs.
    """
    random = torch.Generator().manual_seed(seed)

    def mask(within: Tensor) -> Tensor:
        density = torch.randint(0, 4, (num_sequences, 1), generator=random) / 3
        chosen = torch.rand(num_sequences, block_length, generator=random) < density
        return (chosen & within.bool()).to(torch.uint8)

    fed = mask(torch.ones(num_sequences, block_length))
    kept, masked = mask(fed), mask(fed)
    num_fed = int(fed.sum())

    def rows(*shape: int, dtype: torch.dtype) -> Tensor:
        wide = torch.full((num_fed, shape[0] + 2, *shape[1:]), float("nan"))
        wide[:, : shape[0]] = torch.randn(num_fed, *shape, generator=random)
        return wide.to(device, dtype)[:, : shape[0]]

    slots = torch.randint(-1, 2**31 - 1, (num_fed,), generator=random).int()
    positions = torch.randint(0, 2**20, (num_fed,), generator=random).int()
    return Case(
        kept=kept.to(device),
        fed=fed.to(device),
        masked=masked.to(device),
        states=CompactionStates(
            hidden=rows(hidden, dtype=dtype),
            q=rows(*heads, dtype=dtype),
            cos=rows(rope, dtype=torch.float32),
            sin=rows(rope, dtype=torch.float32),
            slots=slots.to(device),
            positions=positions.to(device),
        ),
        capacity=int(kept.sum()) + spare,
    )


@pytest.mark.parametrize("num_sequences", [0, 1, 2, 4])
@pytest.mark.parametrize("block_length", [1, 4, 13, 32, 64])
def test_equals_the_reference(
    num_sequences: int, block_length: int, kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    for seed in range(10 if ON_GPU else 2):
        make_case(
            num_sequences,
            block_length=block_length,
            device=kernel_device,
            dtype=kernel_dtype,
            seed=seed,
        ).assert_equals_the_reference()


@pytest.mark.parametrize(
    ("hidden", "heads", "rope"), [(1100, (1, 16), 24), (16, (5, 256), 256), (1024, (16, 80), 40)]
)
def test_widths_of_several_chunks(
    hidden: int,
    heads: tuple[int, int],
    rope: int,
    kernel_device: torch.device,
    kernel_dtype: torch.dtype,
) -> None:
    make_case(
        2,
        block_length=16,
        hidden=hidden,
        heads=heads,
        rope=rope,
        device=kernel_device,
        dtype=kernel_dtype,
    ).assert_equals_the_reference()


def test_counts_of_many_sequences(kernel_device: torch.device) -> None:
    # More than one block of the prefix sum.
    count = 4096 if ON_GPU else 260
    make_case(
        count, block_length=2, hidden=8, heads=(1, 16), spare=2000, device=kernel_device
    ).assert_equals_the_reference()


@pytest.mark.skipif(not ON_GPU, reason="a step's real size takes minutes in the interpreter")
def test_a_step_of_the_real_size(kernel_device: torch.device) -> None:
    make_case(
        256,
        block_length=32,
        hidden=4096,
        heads=(32, 128),
        rope=128,
        dtype=torch.bfloat16,
        device=kernel_device,
    ).assert_equals_the_reference()


@pytest.mark.parametrize("density", [0, 1])
def test_nothing_or_all_is_kept(density: int, kernel_device: torch.device) -> None:
    case = make_case(3, device=kernel_device)
    kept = case.fed * density
    replace(case, kept=kept, capacity=int(kept.sum())).assert_equals_the_reference()
    replace(case, kept=kept, capacity=int(kept.sum()) + 300).assert_equals_the_reference()


def test_bits_of_not_a_number_survive(kernel_device: torch.device) -> None:
    case = make_case(4, device=kernel_device, seed=1)
    bits = torch.arange(case.states.hidden.numel(), dtype=torch.int32, device=kernel_device)
    hidden = (bits + 0x7F800001).view(torch.float32).view(case.states.hidden.shape)
    case = replace(case, states=replace(case.states, hidden=hidden))
    ours = case.run().hidden.view(torch.int32)
    kept_rows = case.kept.bool()[case.fed.bool()]
    assert 0 < kept_rows.sum() < len(kept_rows)
    assert torch.equal(ours[: int(kept_rows.sum())], hidden.view(torch.int32)[kept_rows])


def test_repeats_give_identical_bits(kernel_device: torch.device, num_repeats: int) -> None:
    case = make_case(3, device=kernel_device)
    first = vars(case.run())
    for _ in range(num_repeats - 1):
        again = vars(case.run())
        assert all(torch.equal(again[name], first[name]) for name in first)


@pytest.mark.parametrize("name", ["hidden", "sin", "positions", "outputs.q", "num_kept"])
def test_refuses_by_name(name: str, kernel_device: torch.device) -> None:
    case = make_case(2, device=kernel_device)
    states = case.states
    outputs = CompactionOutputs.empty(states, 2, case.capacity)
    counts = torch.zeros(2, dtype=torch.int32, device=kernel_device)
    cu_fed = torch.zeros(3, dtype=torch.int32, device=kernel_device)
    num_kept = counts.long() if name == "num_kept" else counts
    if name == "hidden":
        states = replace(states, hidden=states.hidden.T.contiguous().T)
    elif name == "sin":
        states = replace(states, sin=states.sin[:, :8])
        outputs = CompactionOutputs.empty(states, 2, case.capacity)
    elif name == "positions":
        states = replace(states, positions=states.positions.long())
    elif name == "outputs.q":
        outputs = replace(outputs, q=outputs.q.double())
    with pytest.raises(ValueError, match=f"^{name}: "):
        compact(case.kept, case.fed, case.masked, num_kept, counts, cu_fed, states, outputs)
