"""Unmasking head: the very tokens of sampling.sample, without its logits, for every kind of row."""

import pytest
import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.engine.kernels.unmask_head import reference
from focus_bench.engine.kernels.unmask_head.launcher import unmask_head
from focus_bench.engine.kernels.unmask_head.workspace import (
    SUB_CHUNK,
    HeadConfig,
    HeadWorkspace,
)
from focus_bench.engine.sampling import sample

ON_GPU = torch.cuda.is_available()
HIDDEN = 8
VOCAB = 2 * SUB_CHUNK + 1003
VALID = 2 * SUB_CHUNK + 517
MASK = 4100
NAN, INF = float("nan"), float("inf")
# One sub-chunk of five float32 rows, two, and all at once.
CHUNK_BYTES = [1, 2 * 5 * 4 * SUB_CHUNK, 1 << 28]
# NumPy, under the interpreter, warns of what rows without a distribution compute.
ignore_nan = pytest.mark.filterwarnings(
    "ignore:invalid value encountered:RuntimeWarning",
    "ignore:divide by zero encountered:RuntimeWarning",
    "ignore:All-NaN:RuntimeWarning",
)


def config(**changes: float | int) -> HeadConfig:
    values: dict[str, float | int] = {"mask_token_id": MASK, "num_valid_ids": VALID}
    return HeadConfig(**{**values, **changes})  # type: ignore[arg-type]


def random(
    *size: int, device: torch.device, dtype: torch.dtype = torch.float32, seed: int
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator).to(device=device, dtype=dtype)


def head_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states and a head whose product is exactly `logits` [R, V], also where not finite.

    Row r of the hidden states has a 1 at r and zeros elsewhere; a zero times infinity would be NaN,
    so a row that is not finite must be the only one.
    """
    return torch.eye(logits.shape[0], device=logits.device), logits.T.contiguous()


def sampled(
    hidden: Tensor, weight: Tensor, config: HeadConfig, uniforms: Tensor | None
) -> tuple[Tensor, Tensor]:
    tokens, confidence = sample(
        torch.nn.functional.linear(hidden, weight).float(),
        SamplingConfig(temperature=config.temperature),
        mask_token_id=config.mask_token_id,
        num_valid_ids=config.num_valid_ids,
        uniforms=uniforms,
    )
    return torch.where(confidence.isnan(), 0, tokens).int(), confidence


def poisoned(max_rows: int, weight: Tensor, config: HeadConfig) -> HeadWorkspace:
    """A workspace whose every value is NaN, or a large number where integers are kept."""
    workspace = HeadWorkspace.allocate(max_rows, weight, config)
    for tensor in vars(workspace).values():
        tensor.fill_(torch.nan if tensor.is_floating_point() else 2**30)
    return workspace


def check(
    hidden: Tensor, weight: Tensor, config: HeadConfig, uniforms: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run into poisoned memory; equal to sample() and to the reference; returns what was drawn."""
    workspace = poisoned(hidden.shape[0], weight, config)
    tokens, confidence = unmask_head(
        hidden, weight, config=config, uniforms=uniforms, workspace=workspace
    )
    for other in (
        sampled(hidden, weight, config, uniforms),
        reference.unmask_head(hidden, weight, config=config, uniforms=uniforms),
    ):
        assert torch.equal(tokens, other[0])
        torch.testing.assert_close(confidence, other[1], rtol=3e-5, atol=1e-12, equal_nan=True)
    return tokens, confidence


def edge_free(hidden: Tensor, weight: Tensor, config: HeadConfig, uniforms: Tensor) -> Tensor:
    """The uniforms, moved where float32 decides: at least 5e-6 away from their id's limits.

    If within 5e-6 of one, to the middle; if their id's share is too small for that, to the middle
    of the most probable id's.
    """
    logits = (hidden @ weight.T).double()
    logits[:, config.mask_token_id] = -torch.inf
    logits[:, config.num_valid_ids :] = -torch.inf
    shares = torch.softmax(logits / config.temperature, dim=-1)
    upper = shares.cumsum(dim=-1)
    place = torch.searchsorted(upper, uniforms[:, None], right=True)
    small = shares.gather(1, place) < 2e-5
    assert small.sum() <= len(uniforms) // 4  # most rows stay where they were
    place = torch.where(small, shares.argmax(dim=-1, keepdim=True), place)
    high = upper.gather(1, place)[:, 0]
    low = high - shares.gather(1, place)[:, 0]
    near = torch.minimum(uniforms - low, high - uniforms) < 5e-6
    return torch.where(near, (low + high) / 2, uniforms)


@pytest.mark.parametrize("chunk_bytes", CHUNK_BYTES)
def test_greedy_equals_sample(chunk_bytes: int, kernel_device: torch.device) -> None:
    hidden = random(5, HIDDEN, device=kernel_device, seed=1)
    weight = random(VOCAB, HIDDEN, device=kernel_device, seed=2)
    weight[MASK] = 9 * hidden[0]  # would win
    weight[VALID:] = 9 * hidden[1]  # padding of the vocabulary: likewise
    tokens, _ = check(hidden, weight, config(max_chunk_bytes=chunk_bytes))
    assert MASK not in tokens
    assert (tokens < VALID).all()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("chunk_bytes", CHUNK_BYTES)
def test_draws_equal_sample(
    temperature: float, chunk_bytes: int, kernel_device: torch.device
) -> None:
    head = config(temperature=temperature, max_chunk_bytes=chunk_bytes)
    hidden = random(5, HIDDEN, device=kernel_device, seed=3)
    weight = 2 * random(VOCAB, HIDDEN, device=kernel_device, seed=4)
    weight[[70, MASK + 50, VALID - 3]] = weight.new_tensor(4.0)
    uniforms = torch.linspace(0.03, 0.97, 5, dtype=torch.float64, device=kernel_device)
    check(hidden, weight, head, edge_free(hidden, weight, head, uniforms))


def test_draws_cover_every_sub_chunk(kernel_device: torch.device) -> None:
    """Three ids of one third each, one in every sub-chunk, at uniforms in their middle."""
    weight = torch.full((VOCAB, 1), -200.0, device=kernel_device)
    ids = [17, SUB_CHUNK, VALID - 1]
    weight[ids] = 5.0
    hidden = torch.ones(3, 1, device=kernel_device)
    uniforms = torch.tensor([1 / 6, 1 / 2, 5 / 6], dtype=torch.float64, device=kernel_device)
    for chunk_bytes in CHUNK_BYTES:
        head = config(temperature=0.8, max_chunk_bytes=chunk_bytes)
        tokens, confidence = check(hidden, weight, head, uniforms)
        assert tokens.tolist() == ids
        assert confidence.tolist() == pytest.approx([1 / 3] * 3, rel=1e-6)


def test_ties_go_to_the_lower_id_within_and_between_sub_chunks(kernel_device: torch.device) -> None:
    logits = torch.zeros(4, VOCAB, device=kernel_device)
    logits[0, [7000, 300, 8200]] = 5.0
    logits[1, [8200, 7000, 7001]] = 5.0
    logits[2, [MASK, MASK + 1, 8192]] = 5.0
    tokens, confidence = check(*head_of(logits), config())
    assert tokens.tolist() == [300, 7000, MASK + 1, 0]
    assert confidence[3].item() == pytest.approx(1 / (VALID - 1), rel=1e-5)


@ignore_nan
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    ("filling", "changes", "token"),
    [
        (0.0, {5: NAN}, None),
        (0.0, {SUB_CHUNK + 9: INF}, None),
        (0.0, {3: NAN, 8000: INF}, None),
        (NAN, {}, None),
        (-INF, {}, None),
        (-INF, {MASK: 1.0, VALID: 2.0}, None),  # only what may not be drawn is left
        (-INF, {MASK: NAN, VALID: INF, VOCAB - 1: NAN, 4000: -3.0}, 4000),  # one id: certain
        (-INF, {VALID - 1: 2.0, MASK: INF}, VALID - 1),
    ],
)
def test_rows_without_a_distribution(
    temperature: float,
    filling: float,
    changes: dict[int, float],
    token: int | None,
    kernel_device: torch.device,
) -> None:
    logits = torch.full((1, VOCAB), filling, device=kernel_device)
    for place, value in changes.items():
        logits[0, place] = value
    uniforms = torch.full((1,), 0.4, dtype=torch.float64, device=kernel_device)
    head = config(temperature=temperature, max_chunk_bytes=1)
    tokens, confidence = check(*head_of(logits), head, uniforms if temperature else None)
    assert tokens.tolist() == [token or 0]
    assert confidence.isnan().item() if token is None else confidence.item() == 1.0


@ignore_nan
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_bad_row_harms_no_other(temperature: float, kernel_device: torch.device) -> None:
    hidden = random(3, HIDDEN, device=kernel_device, seed=5)
    weight = random(VOCAB, HIDDEN, device=kernel_device, seed=6)
    uniforms = torch.full((3,), 0.4, dtype=torch.float64, device=kernel_device)
    head = config(temperature=temperature)
    tokens, confidence = unmask_head(hidden, weight, config=head, uniforms=uniforms)
    hidden[1] = torch.nan
    after, certain = unmask_head(hidden, weight, config=head, uniforms=uniforms)
    assert after.tolist() == [tokens[0], 0, tokens[2]]
    assert certain[1].isnan()
    assert torch.equal(certain[[0, 2]], confidence[[0, 2]])


@pytest.mark.parametrize("num_valid", [1, SUB_CHUNK - 1, SUB_CHUNK, SUB_CHUNK + 1, VOCAB])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_the_valid_ids_end(
    num_valid: int, temperature: float, kernel_device: torch.device
) -> None:
    """With one valid id beyond a sub-chunk, the mask token: that sub-chunk has nothing at all."""
    mask = SUB_CHUNK if num_valid == SUB_CHUNK + 1 else VOCAB - 1
    head = config(
        num_valid_ids=num_valid, mask_token_id=mask, temperature=temperature, max_chunk_bytes=1
    )
    logits = torch.full((2, VOCAB), -3.0, device=kernel_device)
    logits[0, : 4 * 997 : 997] = 8.0
    last = max(i for i in range(min(num_valid, VOCAB)) if i != mask)
    logits[1, last] = 30.0
    uniforms = torch.tensor([0.4, 0.5], dtype=torch.float64, device=kernel_device)
    tokens, _ = check(*head_of(logits), head, uniforms if temperature else None)
    assert tokens[1].item() == last


def test_no_draw_has_probability_0_at_either_end(kernel_device: torch.device) -> None:
    """Ids of probability 0 lie before, between and after the ids that may be drawn.

    A uniform of 1 stands for sums of rounded parts that stay below the target.
    """
    logits = torch.full((5, VOCAB), -1e4, device=kernel_device)
    allowed = [SUB_CHUNK + 50, SUB_CHUNK + 60]
    logits[:, allowed] = 1.0
    logits[:, [3, SUB_CHUNK + 55, VALID - 1]] = -104.0  # its exponential is below all of float32
    uniforms = torch.tensor([0.0, 0.25, 0.75, 1 - 2.0**-53, 1.0], dtype=torch.float64)
    tokens, confidence = unmask_head(
        *head_of(logits),
        config=config(temperature=1.0, max_chunk_bytes=1),
        uniforms=uniforms.to(kernel_device),
    )
    assert tokens.tolist() == [allowed[0]] * 2 + [allowed[1]] * 3
    assert confidence.tolist() == [0.5] * 5


def test_a_tiny_temperature_is_greedy(kernel_device: torch.device) -> None:
    hidden = random(4, HIDDEN, device=kernel_device, seed=7)
    weight = random(VOCAB, HIDDEN, device=kernel_device, seed=8)
    greedy, _ = unmask_head(hidden, weight, config=config())
    uniforms = torch.full((4,), 0.999, dtype=torch.float64, device=kernel_device)
    for temperature in (1e-6, 1e-44):
        head = config(temperature=temperature)
        tokens, confidence = unmask_head(hidden, weight, config=head, uniforms=uniforms)
        assert torch.equal(tokens, greedy)
        assert confidence.tolist() == [1.0] * 4


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_repeats_to_the_bit_in_any_workspace(
    temperature: float, kernel_dtype: torch.dtype, kernel_device: torch.device, num_repeats: int
) -> None:
    hidden = random(4, HIDDEN, device=kernel_device, dtype=kernel_dtype, seed=9)
    weight = random(VOCAB, HIDDEN, device=kernel_device, dtype=kernel_dtype, seed=10)
    uniforms = torch.rand(4, dtype=torch.float64).to(kernel_device)
    head = config(temperature=temperature, max_chunk_bytes=1)
    workspace = poisoned(7, weight, head)  # of more rows, used again and again
    first = unmask_head(hidden, weight, config=head, uniforms=uniforms)
    for _ in range(num_repeats):
        again = unmask_head(hidden, weight, config=head, uniforms=uniforms, workspace=workspace)
        assert torch.equal(again[0], first[0])
        assert torch.equal(again[1], first[1])


def test_bfloat16_logits_are_rounded_as_the_linear_layer_rounds(
    kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    """Exact in either dtype: small integers, so that every order of summation gives the same."""
    generator = torch.Generator().manual_seed(11)
    hidden = torch.randint(-2, 3, (6, HIDDEN), generator=generator).to(kernel_device, kernel_dtype)
    weight = torch.randint(-2, 3, (VOCAB, HIDDEN), generator=generator)
    weight = weight.to(kernel_device, kernel_dtype)
    check(hidden, weight, config(max_chunk_bytes=1))
    uniforms = torch.linspace(0.001, 0.997, 6, dtype=torch.float64, device=kernel_device)
    head = config(temperature=1.0)
    check(hidden, weight, head, edge_free(hidden.float(), weight.float(), head, uniforms))


def test_no_rows(kernel_device: torch.device) -> None:
    hidden = torch.empty(0, HIDDEN, device=kernel_device)
    weight = torch.ones(VOCAB, HIDDEN, device=kernel_device)
    tokens, confidence = unmask_head(hidden, weight, config=config())
    assert (tokens.shape, tokens.dtype) == ((0,), torch.int32)
    assert (confidence.shape, confidence.dtype) == ((0,), torch.float32)


def test_chunks_are_as_wide_as_their_bytes_allow() -> None:
    num_subs = -(-VALID // SUB_CHUNK)
    row_bytes = 2 * SUB_CHUNK
    assert config(max_chunk_bytes=1).chunk_subs(9, 2) == 1
    assert config(max_chunk_bytes=2 * 9 * row_bytes - 1).chunk_subs(9, 2) == 1
    assert config(max_chunk_bytes=2 * 9 * row_bytes).chunk_subs(9, 2) == 2
    assert config(max_chunk_bytes=1 << 40).chunk_subs(9, 2) == num_subs
    for max_rows in (1, 5, 40):
        head = config(max_chunk_bytes=10 * row_bytes)
        weight = torch.empty(VOCAB, 1, dtype=torch.bfloat16)
        workspace = HeadWorkspace.allocate(max_rows, weight, head)
        for num_rows in range(1, max_rows + 1):
            workspace.check(num_rows, weight, head)
        assert workspace.logits.nbytes <= max(head.max_chunk_bytes, max_rows * row_bytes)


def test_bad_arguments_are_named(kernel_device: torch.device) -> None:
    hidden = torch.ones(2, HIDDEN, device=kernel_device)
    weight = torch.ones(VOCAB, HIDDEN, device=kernel_device)
    with pytest.raises(ValueError, match="num_valid_ids"):
        unmask_head(hidden, weight, config=config(num_valid_ids=VOCAB + 1))
    with pytest.raises(ValueError, match="mask_token_id"):
        unmask_head(hidden, weight, config=config(mask_token_id=-1))
    with pytest.raises(ValueError, match="needs uniforms"):
        unmask_head(hidden, weight, config=config(temperature=1.0))
    with pytest.raises(ValueError, match="uniforms must be"):
        unmask_head(hidden, weight, config=config(temperature=1.0), uniforms=hidden[:, 0])
    workspace = HeadWorkspace.allocate(1, weight, config())
    with pytest.raises(ValueError, match="too small for 2 rows"):
        unmask_head(hidden, weight, config=config(), workspace=workspace)


@pytest.mark.skipif(not ON_GPU, reason="needs CUDA graphs")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_graph_replays_equal_eager(temperature: float, kernel_device: torch.device) -> None:
    hidden = random(5, 64, device=kernel_device, seed=12)
    weight = random(VOCAB, 64, device=kernel_device, seed=13)
    uniforms = torch.rand(5, dtype=torch.float64, device=kernel_device)
    head = config(temperature=temperature, max_chunk_bytes=1)
    workspace = HeadWorkspace.allocate(5, weight, head)
    unmask_head(hidden, weight, config=head, uniforms=uniforms, workspace=workspace)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, confidence = unmask_head(
            hidden, weight, config=head, uniforms=uniforms, workspace=workspace
        )
    hidden.copy_(random(5, 64, device=kernel_device, seed=14))
    graph.replay()
    expected = unmask_head(hidden, weight, config=head, uniforms=uniforms)
    assert torch.equal(tokens, expected[0])
    assert torch.equal(confidence, expected[1])


@pytest.mark.skipif(not ON_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_large_vocabulary(temperature: float, kernel_device: torch.device) -> None:
    hidden = random(300, 64, device=kernel_device, seed=15)
    weight = 0.4 * random(151_936, 64, device=kernel_device, seed=16)
    head = HeadConfig(
        mask_token_id=151_669,
        num_valid_ids=151_670,
        temperature=temperature,
        max_chunk_bytes=50_000_000,
    )
    uniforms = torch.rand(300, dtype=torch.float64, generator=torch.Generator().manual_seed(17))
    if temperature:
        uniforms = edge_free(hidden, weight, head, uniforms.to(kernel_device))
    check(hidden, weight, head, uniforms if temperature else None)
