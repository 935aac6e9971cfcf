"""The selection kernel against the rule of decoding/: masks are equal on exact arithmetic."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from focus_bench.core.config import DecodeConfig
from focus_bench.core.rng import stream_key, uniform
from focus_bench.decoding.attention_cover import last_attended
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.caching import Feed, plan_feed
from focus_bench.decoding.eviction import (
    base_budget,
    evict,
    evicts_by_score,
    outlier_count,
    rows_to_evict,
)
from focus_bench.decoding.policies import POLICY_CODES
from focus_bench.engine.kernels.selection.launcher import (
    ACTIVE,
    FIXED,
    RIGHTMOST,
    SelectionInputs,
    SelectionOutputs,
    select,
)

SEED = 11
ALPHAS = (1.0, 1.2, 1.5, 1.8, 2.1, 3.0)
ROWS = 400 if torch.cuda.is_available() else 24  # the interpreter takes some 4 ms a row
MODES = {"top": "top", "bottom": "bottom", "random": "given"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """Rows before eviction, their deltas, and the configuration that both sides follow."""

    block: BlockState
    feed: Feed
    delta: np.ndarray
    config: DecodeConfig


def flags_of(step: Step) -> np.ndarray:
    """The flags that the host passes to the kernel."""
    flags = np.where(rows_to_evict(step.block, step.feed, step.config), ACTIVE, 0)
    flags |= np.where(step.block.policy_code == POLICY_CODES["focus-fixed"], FIXED, 0)
    if step.config.attention_cover == "rightmost":
        flags |= np.where(evicts_by_score(step.block) & ~step.feed.commit, RIGHTMOST, 0)
    return flags


def inputs_of(step: Step, device: torch.device) -> SelectionInputs:
    """The kernel's inputs, as the host computes them; deltas are NaN where no mask is fed."""
    block, feed, config = step.block, step.feed, step.config
    num_masked = feed.decodable.sum(axis=1)
    fixed = block.policy_code == POLICY_CODES["focus-fixed"]
    retained = np.minimum(num_masked, config.retain)
    budget = np.where(fixed, retained, base_budget(block, num_masked, config))
    scores = None
    if config.select == "random":
        key = stream_key(SEED, "select-random")
        positions = np.arange(block.block_length)[None, :]
        scores = uniform(
            key,
            block.request_key[:, None],
            block.block_index[:, None],
            block.block_steps[:, None],
            positions,
        )

    def on_device(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device, dtype)

    return SelectionInputs(
        delta=on_device(np.where(feed.decodable, step.delta, np.nan), torch.float32),
        fed=on_device(feed.positions, torch.uint8),
        masked=on_device(feed.decodable, torch.uint8),
        progress=on_device(block.progress, torch.int32),
        budget=on_device(budget, torch.int32),
        block_start=on_device(block.block_start, torch.int32),
        flags=on_device(flags_of(step), torch.int32),
        scores=None if scores is None else on_device(scores, torch.float64),
    )


def poisoned_outputs(inputs: SelectionInputs) -> SelectionOutputs:
    outputs = SelectionOutputs.empty(*inputs.fed.shape, inputs.fed.device)
    for tensor in vars(outputs).values():
        tensor.fill_(99)
    return outputs


def run(step: Step, device: torch.device) -> dict[str, np.ndarray]:
    """The kernel's outputs by name."""
    inputs = inputs_of(step, device)
    outputs = poisoned_outputs(inputs)
    select(inputs, outputs, mode=MODES[step.config.select])
    return {name: tensor.cpu().numpy() for name, tensor in vars(outputs).items()}


def expected(step: Step) -> dict[str, np.ndarray]:
    """What the rule says, by the kernel's names."""
    block, feed, config = step.block, step.feed, step.config
    with np.errstate(invalid="ignore"):
        result = evict(block, feed, step.delta, config, SEED)
    cover = config.attention_cover
    attended = last_attended(block, feed, result.kept, result.progress, cover)
    return {
        "kept": result.kept,
        "num_kept": result.kept.sum(axis=1),
        "num_head": (result.kept & feed.decodable).sum(axis=1),
        "progress": result.progress,
        "num_keys": block.block_start + attended + 1,
    }


def assert_equals_the_rule(step: Step, device: torch.device) -> None:
    ours, rule = run(step, device), expected(step)
    for name, values in rule.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)


def random_rows(
    random: np.random.Generator,
    rows: int,
    length: int,
    policies: tuple[str, ...] = ("focus", "focus-fixed"),
) -> BlockState:
    """Rows in the middle of a block: mixed masks, frozen positions, progress and averages; some
    are all mask, some commit.
    """
    block = BlockState.empty(rows, length)
    density = random.choice([0.0, 0.2, 0.5, 0.9, 1.0], size=(rows, 1))
    block.decoded[:] = random.random((rows, length)) < density
    block.uncached[:] = (random.random((rows, length)) < 0.5) | ~block.decoded
    block.uncached[:, -1] = True
    block.progress[:] = random.integers(-1, length, rows)
    block.block_steps[:] = block.request_steps[:] = random.integers(0, 6, rows)
    block.block_decoded[:] = random.integers(block.block_steps, 3 * block.block_steps + 1)
    block.request_decoded[:] = block.block_decoded
    block.request_key[:] = random.integers(0, 2**40, rows)
    block.block_index[:] = random.integers(0, 100, rows)
    block.block_start[:] = length * block.block_index
    block.policy_code[:] = [POLICY_CODES[policies[i % len(policies)]] for i in range(rows)]
    return block


def decided_by_rounding(delta: np.ndarray, masked: np.ndarray) -> bool:
    """Whether a delta lies so near mean + std that the order of a sum may decide; not where every
    number of the computation is a float64 (then both sides must find the tie).
    """
    values = [Fraction(float(v)) for v in delta[masked]]
    if not values:
        return False
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    is_exact = float(mean) == mean and float(variance) == variance
    is_exact = is_exact and Fraction(math.sqrt(variance)) ** 2 == variance
    limit = float(mean) + math.sqrt(variance)
    scale = max(abs(float(v)) for v in values)
    is_near = any(abs(float(v) - limit) <= 1e-12 * scale for v in values)
    return is_near and not is_exact and variance > 0


def without_rounding(step: Step) -> Step:
    """The rows whose outcome does not hang on rounding: all but a few."""
    rows = [
        row
        for row in range(step.block.num_rows)
        if not decided_by_rounding(step.delta[row], step.feed.decodable[row])
    ]
    assert len(rows) > 0.8 * step.block.num_rows
    block = step.block.take(np.array(rows))
    return replace(step, block=block, feed=plan_feed(block), delta=step.delta[rows])


def make_step(block: BlockState, delta: np.ndarray, **config: object) -> Step:
    return Step(
        block=block,
        feed=plan_feed(block),
        delta=delta.astype(np.float32),
        config=DecodeConfig(block_length=block.block_length, **config),
    )


@pytest.mark.parametrize("length", [1, 4, 8, 13, 32, 64])
@pytest.mark.parametrize("cover", ["progress", "rightmost"])
@pytest.mark.parametrize("select_by", ["top", "bottom", "random"])
def test_equals_the_rule_on_a_grid(
    length: int, cover: str, select_by: str, kernel_device: torch.device
) -> None:
    random = np.random.default_rng(length)
    for index, alpha in enumerate(ALPHAS):
        block = random_rows(random, -(-ROWS // len(ALPHAS)), length)
        # Few values: most rows have ties, many have a delta exactly at the limit.
        delta = random.integers(-2, 3, block.decoded.shape) / 2 ** random.integers(0, 9)
        step = make_step(
            block,
            delta,
            alpha=alpha,
            retain=1 + 2 * index,
            select=select_by,
            attention_cover=cover,
        )
        assert_equals_the_rule(without_rounding(step), kernel_device)


@pytest.mark.parametrize("length", [8, 32, 64])
def test_equals_the_rule_on_real_numbers(length: int, kernel_device: torch.device) -> None:
    random = np.random.default_rng(length)
    block = random_rows(random, ROWS, length)
    scale = 10.0 ** random.integers(-6, 7, (ROWS, 1))
    delta = scale * (random.standard_normal(block.decoded.shape) + random.integers(0, 50))
    assert_equals_the_rule(without_rounding(make_step(block, delta)), kernel_device)


def test_rows_of_other_policies_keep_what_they_feed(kernel_device: torch.device) -> None:
    policies = ("baseline", "focus", "delayed-cache", "delayed-cache-neighbor")
    random = np.random.default_rng(3)
    block = random_rows(random, 16, 8, policies)
    delta = random.integers(-8, 9, block.decoded.shape) / 4
    for cover in ("progress", "rightmost"):
        step = without_rounding(make_step(block, delta, attention_cover=cover))
        assert_equals_the_rule(step, kernel_device)


def all_masked(rows: int, *, length: int = 8, progress: int = 7) -> BlockState:
    block = BlockState.empty(rows, length)
    block.uncached[:] = True
    block.progress[:] = progress
    block.policy_code[:] = POLICY_CODES["focus"]
    return block


@pytest.mark.parametrize(
    ("progress", "kept", "num_keys"), [(-1, [0, 1, 2, 3, 4], 5), (7, [0, 3, 4], 8)]
)
def test_worked_vector(
    progress: int, kept: list[int], num_keys: int, kernel_device: torch.device
) -> None:
    # K0 = 2, limit 3.09, so 0 and 4 are selected; 3 is 4's context; 1 and 2 come back unless
    # they were processed before.
    block = all_masked(1, progress=progress)
    step = make_step(block, np.array([[5, 0, 0, 0, 4, 0, 0, 0]]), alpha=1.5)
    ours = run(step, kernel_device)
    assert np.flatnonzero(ours["kept"][0]).tolist() == kept
    assert ours["num_kept"].tolist() == ours["num_head"].tolist() == [len(kept)]
    assert ours["num_keys"].tolist() == [num_keys]
    assert_equals_the_rule(step, kernel_device)


def test_a_delta_at_the_limit_counts(kernel_device: torch.device) -> None:
    # Mean 0, std 1: four outliers, and their left neighbours as context.
    step = make_step(all_masked(1), np.array([[1, -1, 1, -1, 1, -1, 1, -1]]), alpha=1.0)
    assert outlier_count(step.delta, step.feed.decodable).tolist() == [4]
    assert run(step, kernel_device)["kept"].tolist() == [[1, 1, 1, 1, 1, 1, 1, 0]]
    assert_equals_the_rule(step, kernel_device)


def test_equal_deltas_have_no_outlier(kernel_device: torch.device) -> None:
    step = make_step(all_masked(1), np.full((1, 8), 0.1), alpha=1.0)
    assert run(step, kernel_device)["kept"].tolist() == [[1, 0, 0, 0, 0, 0, 0, 0]]


def test_deviation_survives_a_large_mean(kernel_device: torch.device) -> None:
    delta = np.full((1, 32), 4096.0)
    delta[0, [5, 9]] += 1 / 1024
    step = make_step(all_masked(1, length=32, progress=31), delta, alpha=1.0)
    ours = run(step, kernel_device)
    assert np.flatnonzero(ours["kept"][0]).tolist() == [4, 5, 8, 9]
    assert_equals_the_rule(step, kernel_device)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_delta_evicts_nothing_of_its_row_only(
    bad: float, kernel_device: torch.device
) -> None:
    delta = np.tile(np.array([5.0, 0, 0, 0, 4, 0, 0, 0]), (3, 1))
    delta[1, 6] = bad
    step = make_step(all_masked(3), delta)
    ours = run(step, kernel_device)
    assert ours["num_kept"].tolist() == [3, 8, 3]
    assert_equals_the_rule(step, kernel_device)


def test_padding_rows_keep_nothing(kernel_device: torch.device) -> None:
    step = make_step(all_masked(4, progress=3), np.ones((4, 8)), attention_cover="rightmost")
    step.block.block_start[:] = 40
    inputs = inputs_of(step, kernel_device)
    inputs.fed[1:3] = 0
    inputs.masked[1:3] = 0
    outputs = poisoned_outputs(inputs)
    select(inputs, outputs, mode="top")
    assert outputs.num_kept[1:3].tolist() == outputs.num_head[1:3].tolist() == [0, 0]
    assert not outputs.kept[1:3].any()
    assert outputs.progress[1:3].tolist() == [3, 3]
    assert outputs.num_keys[1:3].tolist() == [44, 44]
    rule = expected(step)
    assert outputs.kept[0].tolist() == rule["kept"][0].tolist()
    assert outputs.num_keys[0].item() == rule["num_keys"][0]


def test_progress_may_be_updated_in_place(kernel_device: torch.device) -> None:
    step = make_step(all_masked(2, progress=-1), np.array([[0, 0, 3, 0, 0, 0, 0, 0]] * 2))
    inputs = inputs_of(step, kernel_device)
    select(inputs, replace(poisoned_outputs(inputs), progress=inputs.progress), mode="top")
    assert inputs.progress.tolist() == expected(step)["progress"].tolist() == [2, 2]


def test_no_rows(kernel_device: torch.device) -> None:
    step = make_step(all_masked(0), np.zeros((0, 8)))
    inputs = inputs_of(step, kernel_device)
    outputs = poisoned_outputs(inputs)
    select(inputs, outputs, mode="top")
    assert outputs.kept.shape == (0, 8)


def test_repeats_give_identical_bits(kernel_device: torch.device, num_repeats: int) -> None:
    random = np.random.default_rng(5)
    block = random_rows(random, 8, 32)
    step = make_step(block, random.standard_normal(block.decoded.shape))
    first = run(step, kernel_device)
    for _ in range(num_repeats - 1):
        again = run(step, kernel_device)
        assert all(np.array_equal(again[name], first[name]) for name in first)


@pytest.mark.parametrize(
    ("name", "mode"), [("mode", "best"), ("scores", "given"), ("delta", "top"), ("budget", "top")]
)
def test_refuses_by_name(name: str, mode: str, kernel_device: torch.device) -> None:
    inputs = inputs_of(make_step(all_masked(2), np.zeros((2, 8))), kernel_device)
    if name == "delta":
        inputs = replace(inputs, delta=inputs.delta[:, :4])
    elif name == "budget":
        inputs = replace(inputs, budget=inputs.budget.long())
    with pytest.raises(ValueError, match=f"^{name}: "):
        select(inputs, poisoned_outputs(inputs), mode=mode)
