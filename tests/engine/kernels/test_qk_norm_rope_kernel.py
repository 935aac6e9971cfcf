"""QK norm, rotary and KV write: equal to the model's own functions; only named slots change."""

import pytest
import torch
from torch import Tensor

from focus_bench.engine.kernels.qk_norm_rope import reference
from focus_bench.engine.kernels.qk_norm_rope.launcher import KVStore, qk_norm_rope
from focus_bench.engine.models import layers

EPS = 1e-6
ON_GPU = torch.cuda.is_available()
# Tokens, query heads, key heads, head dimension, and its rotated part if it is not the whole.
SHAPES = [
    (1, 1, 1, 16),
    (5, 4, 2, 48),
    (3, 3, 1, 80),
    (4, 2, 2, 96),
    (2, 14, 2, 64),
    (3, 2, 1, 256),
    (5, 4, 2, 32, 16),
    (4, 3, 1, 80, 24),
    (2, 2, 1, 16, 14),
]
if ON_GPU:
    SHAPES += [(2458, 32, 8, 128), (20, 28, 4, 128), (333, 48, 8, 96), (70_000, 2, 1, 16)]
    SHAPES += [(2458, 16, 4, 128, 64), (20, 32, 4, 128, 64)]


class Inputs:
    """Random inputs; the cache is NaN everywhere, and slots come in no order."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        num_tokens, num_q, num_kv, head_dim, *partial = shape
        rotary_dim = partial[0] if partial else head_dim
        generator = torch.Generator().manual_seed(num_tokens + head_dim)

        def random(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).to(device=device, dtype=dtype)

        self.num_q = num_q
        self.qkv = random(num_tokens, (num_q + 2 * num_kv) * head_dim)
        self.weight = 1 + 0.1 * random(num_q + num_kv, head_dim)
        frequencies = layers.rope_frequencies(rotary_dim, 1e4, device)
        positions = torch.arange(num_tokens, device=device) * 7 % 509
        self.cos, self.sin = layers.rope_tables(positions, frequencies, dtype)
        self.num_slots = num_tokens + 5
        slots = torch.randperm(self.num_slots, generator=generator)[:num_tokens]
        slots[1::3] = -1
        self.slots = slots.int().to(device)
        shape = (2, self.num_slots + 1, num_kv, head_dim)
        self.cache = torch.full(shape, torch.nan, device=device, dtype=dtype)
        # The row before slot 0 is where a write to slot -1 would go.
        self.keys, self.values = self.cache[0, 1:], self.cache[1, 1:]

    def run(self, out: Tensor | None = None) -> Tensor:
        store = KVStore(keys=self.keys, values=self.values, slots=self.slots)
        return qk_norm_rope(
            self.qkv, self.weight, self.cos, self.sin, EPS, store, num_q_heads=self.num_q, out=out
        )

    def expected(self, wide: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Query, keys and values by the model's functions, on float32 inputs if `wide`."""
        arguments = [self.qkv, self.weight, self.cos, self.sin]
        if wide:
            arguments = [tensor.float() for tensor in arguments]
        qkv, weight, cos, sin = arguments
        heads = qkv.view(qkv.shape[0], -1, weight.shape[1])
        qk = layers.rms_norm(heads[:, : weight.shape[0]], weight, EPS)
        qk = layers.apply_rope(qk, cos, sin)
        return qk[:, : self.num_q], qk[:, self.num_q :], heads[:, weight.shape[0] :]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_layers_functions(
    shape: tuple[int, ...], kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    inputs = Inputs(shape, kernel_dtype, kernel_device)
    num_tokens, num_q, _, head_dim = shape[:4]
    poisoned = torch.full(
        (num_tokens, num_q, head_dim), torch.nan, device=kernel_device, dtype=kernel_dtype
    )
    q = inputs.run(out=poisoned)
    assert q is poisoned
    exact_q, exact_k, exact_v = inputs.expected(wide=True)
    kept = inputs.slots >= 0
    slots = inputs.slots[kept].long()
    pairs = {"q": (q, exact_q), "k": (inputs.keys[slots], exact_k[kept])}
    for name, (ours, exact) in pairs.items():
        error = (ours.float() - exact).abs()
        if kernel_dtype is torch.float32:
            # Of the largest of the head: a rotated pair may cancel.
            assert (error <= 1e-6 * exact.abs().amax(dim=-1, keepdim=True)).all(), name
        else:
            # One rounding at the end: half a unit in the last of bfloat16's 8 bits, and no more.
            assert (error <= exact.abs() * (2**-8 + 1e-6) + 1e-6).all(), name
    assert torch.equal(inputs.values[slots].float(), exact_v[kept])
    untouched = torch.ones(inputs.num_slots, dtype=torch.bool, device=kernel_device)
    untouched[slots] = False
    assert inputs.keys[untouched].isnan().all()
    assert inputs.values[untouched].isnan().all()
    assert inputs.cache[:, 0].isnan().all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_a_norm_heads_are_only_rotated(
    shape: tuple[int, ...], kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    inputs = Inputs(shape, kernel_dtype, kernel_device)
    num_tokens, num_q, num_kv, head_dim = shape[:4]
    store = KVStore(keys=inputs.keys, values=inputs.values, slots=inputs.slots)
    q = qk_norm_rope(inputs.qkv, None, inputs.cos, inputs.sin, EPS, store, num_q_heads=num_q)
    heads = inputs.qkv.float().view(num_tokens, -1, head_dim)
    exact = layers.apply_rope(heads[:, : num_q + num_kv], inputs.cos.float(), inputs.sin.float())
    kept = inputs.slots >= 0
    slots = inputs.slots[kept].long()
    for ours, wanted in ((q, exact[:, :num_q]), (inputs.keys[slots], exact[kept, num_q:])):
        error = (ours.float() - wanted).abs()
        if kernel_dtype is torch.float32:
            assert (error <= 1e-6 * wanted.abs().amax(dim=-1, keepdim=True)).all()
        else:
            assert (error <= wanted.abs() * (2**-8 + 1e-6) + 1e-6).all()
    assert torch.equal(inputs.values[slots].float(), heads[kept, num_q + num_kv :])
    assert inputs.keys.isnan().all(dim=-1).all(dim=-1).sum() == inputs.num_slots - len(slots)


@pytest.mark.parametrize("shape", [(6, 4, 2, 48), (6, 4, 2, 48, 20)], ids=str)
def test_reference_equals_the_layers_functions(
    shape: tuple[int, ...], kernel_dtype: torch.dtype
) -> None:
    inputs = Inputs(shape, kernel_dtype, torch.device("cpu"))
    ours = reference.qk_norm_rope(
        inputs.qkv, inputs.weight, inputs.cos, inputs.sin, EPS, inputs.num_q
    )
    for mine, expected in zip(ours, inputs.expected(wide=False), strict=True):
        torch.testing.assert_close(mine, expected)
    reference.store(inputs.keys, inputs.slots, ours[1])
    kept = inputs.slots >= 0
    assert torch.equal(inputs.keys[inputs.slots[kept].long()], ours[1][kept])
    assert inputs.keys.isnan().all(dim=-1).all(dim=-1).sum() == inputs.num_slots - kept.sum()


def test_padding_rows_of_nan_reach_nothing(kernel_device: torch.device) -> None:
    inputs = Inputs((7, 4, 2, 32), torch.float32, kernel_device)
    expected = inputs.run()
    keys, values = inputs.keys.clone(), inputs.values.clone()
    padding = inputs.slots < 0
    for tensor in (inputs.qkv, inputs.cos, inputs.sin):
        tensor[padding] = torch.nan
    inputs.keys.fill_(torch.nan)
    inputs.values.fill_(torch.nan)
    assert torch.equal(inputs.run()[~padding], expected[~padding])
    torch.testing.assert_close(inputs.keys, keys, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(inputs.values, values, rtol=0, atol=0, equal_nan=True)


def test_strided_inputs_and_cache(kernel_device: torch.device) -> None:
    inputs = Inputs((5, 4, 2, 32), torch.float32, kernel_device)
    expected = inputs.run()
    keys, values = inputs.keys, inputs.values
    for name in ("qkv", "cos", "sin"):
        tensor = getattr(inputs, name)
        wide = tensor.new_full((tensor.shape[0] * 2, tensor.shape[1] + 3), torch.nan)
        wide[::2, 3:] = tensor
        setattr(inputs, name, wide[::2, 3:])
    around = keys.new_full((inputs.num_slots, 2, 3, 32), torch.nan)  # token, key or value, heads
    inputs.keys, inputs.values = around[:, 0, :2], around[:, 1, :2]
    assert torch.equal(inputs.run(), expected)
    torch.testing.assert_close(inputs.keys, keys, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(inputs.values, values, rtol=0, atol=0, equal_nan=True)
    assert around[:, :, 2].isnan().all()


def test_a_token_does_not_depend_on_the_others_and_repeats(
    kernel_dtype: torch.dtype, kernel_device: torch.device, num_repeats: int
) -> None:
    inputs = Inputs((6, 4, 2, 48), kernel_dtype, kernel_device)
    q = inputs.run()
    keys = inputs.keys.clone()
    for _ in range(num_repeats):
        inputs.keys.fill_(torch.nan)
        assert torch.equal(inputs.run(), q)
        torch.testing.assert_close(inputs.keys, keys, rtol=0, atol=0, equal_nan=True)
    for name in ("qkv", "cos", "sin", "slots"):
        setattr(inputs, name, getattr(inputs, name)[2:4])
    assert torch.equal(inputs.run(), q[2:4])


def test_no_tokens(kernel_device: torch.device) -> None:
    inputs = Inputs((0, 4, 2, 32), torch.float32, kernel_device)
    assert inputs.run().shape == (0, 4, 32)
    assert inputs.keys.isnan().all()


@pytest.mark.skipif(not ON_GPU, reason="needs a cache of 4.3 GB")
def test_slots_beyond_31_bits_of_elements(kernel_device: torch.device) -> None:
    num_kv, head_dim = 8, 128
    num_slots = 2**31 // (num_kv * head_dim) + 9
    inputs = Inputs((3, 16, num_kv, head_dim), torch.bfloat16, kernel_device)
    small = Inputs((3, 16, num_kv, head_dim), torch.bfloat16, kernel_device)
    inputs.slots = torch.tensor([num_slots - 1, 0, num_slots - 5], device=kernel_device).int()
    small.slots = torch.tensor([2, 0, 1], device=kernel_device).int()
    shape = (num_slots, num_kv, head_dim)
    inputs.keys = torch.empty(shape, device=kernel_device, dtype=torch.bfloat16)
    inputs.values = torch.empty(shape, device=kernel_device, dtype=torch.bfloat16)
    assert torch.equal(inputs.run(), small.run())
    for big, little in ((inputs.keys, small.keys), (inputs.values, small.values)):
        assert torch.equal(big[inputs.slots.long()], little[small.slots.long()])


def test_bad_arguments_are_named(kernel_device: torch.device) -> None:
    inputs = Inputs((3, 4, 2, 32), torch.float32, kernel_device)
    store = KVStore(keys=inputs.keys, values=inputs.values, slots=inputs.slots)
    arguments = (inputs.weight, inputs.cos, inputs.sin, EPS)
    with pytest.raises(ValueError, match="qkv is"):
        qk_norm_rope(inputs.qkv[:, 1:], *arguments, store, num_q_heads=4)
    with pytest.raises(ValueError, match="cos has rows of 31; allowed are 2 to 32, and even"):
        qk_norm_rope(
            inputs.qkv, inputs.weight, inputs.cos[:, 1:], inputs.sin, EPS, store, num_q_heads=4
        )
    with pytest.raises(ValueError, match="qk_norm is"):
        qk_norm_rope(inputs.qkv[:, 32:], *arguments, store, num_q_heads=3)
    wrong = KVStore(keys=inputs.keys, values=inputs.values, slots=inputs.slots.long())
    with pytest.raises(ValueError, match="slots must be contiguous int32"):
        qk_norm_rope(inputs.qkv, *arguments, wrong, num_q_heads=4)
