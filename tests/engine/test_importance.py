"""Importance of masked positions against plain Python loops."""

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from focus_bench.decoding import eviction
from focus_bench.engine.importance import importance


def by_loops(q: np.ndarray, k: np.ndarray) -> list[float]:
    """Importance of one sequence's M masked rows, as the rule is written."""
    masked, heads, head_dim = q.shape
    group = heads // k.shape[1]
    total = [0.0] * masked
    for head in range(heads):
        for i in range(masked):
            scores = [
                float(q[i, head] @ k[j, head // group]) / math.sqrt(head_dim) for j in range(masked)
            ]
            pooled = [max(scores[max(0, j - 1) : j + 2]) for j in range(masked)]
            largest = max(pooled)
            weights = [math.exp(value - largest) for value in pooled]
            for j in range(masked):
                total[j] += weights[j] / sum(weights)
    return total


def random_rows(heads: int, kv_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    fused = torch.randn(40, heads + kv_heads, head_dim, generator=random)
    return fused[:, :heads], fused[:, heads:]  # strided, as the model gives them


MASKED_ROWS = [
    np.array([0, 1, 2, 3, 4]),
    np.arange(0),
    np.array([7, 9, 10, 15, 16]),
    np.array([20]),
    np.array([23, 25]),
    np.arange(27, 40),
]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(8, 2, 16), (7, 1, 48), (6, 6, 32), (2, 1, 256)]
)
def test_importance_equals_the_loops(heads: int, kv_heads: int, head_dim: int) -> None:
    q, k = random_rows(heads, kv_heads, head_dim)
    expected = [
        value
        for rows in MASKED_ROWS
        for value in by_loops(q[rows].double().numpy(), k[rows].double().numpy())
    ]
    result = importance(q, k, MASKED_ROWS)
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-5, atol=2e-5)


def test_importance_equals_the_rule_in_decoding() -> None:
    q, k = random_rows(8, 2, 16)
    expected = [eviction.importance(q[r].numpy(), k[r].numpy()) for r in MASKED_ROWS if len(r)]
    np.testing.assert_allclose(
        importance(q, k, MASKED_ROWS).numpy(), np.concatenate(expected), rtol=2e-5, atol=2e-5
    )


def test_each_sequences_importance_sums_to_heads_times_masked() -> None:
    q, k = random_rows(8, 2, 16)
    parts = importance(q, k, MASKED_ROWS).split([len(rows) for rows in MASKED_ROWS])
    for part, rows in zip(parts, MASKED_ROWS, strict=True):
        assert part.sum().item() == pytest.approx(8 * len(rows), rel=1e-5)


def test_no_masked_rows_at_all() -> None:
    q, k = random_rows(8, 2, 16)
    assert importance(q, k, []).shape == (0,)
    assert importance(q, k, [np.arange(0)]).shape == (0,)


def test_a_nan_stays_inside_its_sequence() -> None:
    q, k = random_rows(8, 2, 16)
    k = k.clone()
    k[9] = torch.nan
    parts = importance(q, k, MASKED_ROWS).split([len(rows) for rows in MASKED_ROWS])
    assert parts[2].isnan().any()
    assert all(part.isfinite().all() for n, part in enumerate(parts) if n != 2)


def test_flops_are_those_documented() -> None:
    q, k = random_rows(8, 2, 16)
    with FlopCounterMode(display=False) as counter:
        importance(q, k, MASKED_ROWS)
    assert counter.get_total_flops() == 2 * 8 * 16 * sum(len(rows) ** 2 for rows in MASKED_ROWS)
