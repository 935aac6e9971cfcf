"""Sampling: masks, ties, filters, confidence, and independence of the batch."""

import numpy as np
import pytest
import torch

from focus_bench.core.config import SamplingConfig
from focus_bench.engine.sampling import sample

MASK = 3
VALID = 6


def draw(
    logits: list[list[float]] | torch.Tensor, config: SamplingConfig, uniforms: object = None
) -> tuple[list[int], list[float]]:
    if uniforms is not None:
        uniforms = torch.as_tensor(np.asarray(uniforms, dtype=np.float64))
    tokens, confidence = sample(
        torch.as_tensor(logits, dtype=torch.float32).clone(),
        config,
        mask_token_id=MASK,
        num_valid_ids=VALID,
        uniforms=uniforms,
    )
    return tokens.tolist(), confidence.tolist()


GREEDY = SamplingConfig()
# Mask (3) and padding (6, 7) have the largest logits and must never be drawn or weigh anything.
ROW = [1.0, 2.0, 0.5, 50.0, -1.0, 0.0, 60.0, 70.0]
VALID_LOGITS = np.array([1.0, 2.0, 0.5, -np.inf, -1.0, 0.0])


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def test_greedy_ignores_mask_and_padding() -> None:
    tokens, confidence = draw([ROW], GREEDY)
    assert tokens == [1]
    assert confidence[0] == pytest.approx(softmax(VALID_LOGITS)[1], rel=1e-6)


def test_equal_logits_go_to_the_lower_id() -> None:
    row = [0.0, 2.0, 2.0, 2.0, 2.0, 1.0, 9.0, 9.0]
    wide = torch.zeros(1, 5000)
    wide[0, [4999, 1234, 2500]] = 7.0
    assert draw([row], GREEDY)[0] == [1]
    tokens, _ = sample(wide, GREEDY, mask_token_id=0, num_valid_ids=5000)
    assert tokens.tolist() == [1234]


@pytest.mark.parametrize("config", [GREEDY, SamplingConfig(temperature=0.7, top_p=0.9)])
def test_rows_without_a_distribution_have_no_confidence(config: SamplingConfig) -> None:
    inf, nan = float("inf"), float("nan")
    rows = [
        ROW,
        [nan] * 8,
        [-inf] * 8,
        [0.0, nan, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [-inf, -inf, -inf, 1.0, -inf, -inf, 1.0, 1.0],  # only mask and padding are left
        [-inf, 4.0, -inf, 1.0, -inf, -inf, 1.0, nan],  # one id is left: certain
    ]
    tokens, confidence = draw(rows, config, [0.5] * len(rows))
    assert np.isnan(confidence).tolist() == [False, True, True, True, True, True, False]
    assert tokens[6] == 1
    assert confidence[6] == 1.0
    assert all(0 <= token < 8 for token in tokens)


def test_temperature_draws_by_inverse_distribution_in_order_of_id() -> None:
    p = softmax(VALID_LOGITS / 0.5)
    edges = np.cumsum(p)
    u = [0.0, edges[0] - 1e-6, edges[0] + 1e-6, edges[2] - 1e-6, edges[2] + 1e-6, 1 - 2.0**-53]
    tokens, confidence = draw([ROW] * 6, SamplingConfig(temperature=0.5), u)
    assert tokens == [0, 0, 1, 2, 4, 5]
    assert confidence == pytest.approx(p[tokens], rel=1e-5)


def test_a_leading_id_of_probability_zero_is_never_drawn() -> None:
    row = [-float("inf"), 1.0, 1.0, 9.0, 1.0, -float("inf"), 9.0, 9.0]
    tokens, _ = draw([row] * 2, SamplingConfig(temperature=1.0), [0.0, 1 - 2.0**-53])
    assert tokens == [1, 4]


def test_top_k_ties_keep_the_lower_ids_and_confidence_stays_unfiltered() -> None:
    row = [1.0, 2.0, 1.0, 9.0, 1.0, 0.0, 9.0, 9.0]
    config = SamplingConfig(temperature=1.0, top_k=3)
    tokens, confidence = draw([row] * 200, config, np.arange(200) / 200)
    p = softmax(np.array([1.0, 2.0, 1.0, -np.inf, 1.0, 0.0]))
    assert sorted(set(tokens)) == [0, 1, 2]
    assert tokens.count(1) == pytest.approx(200 * p[1] / p[:3].sum(), abs=1)
    assert confidence == pytest.approx(p[tokens], rel=1e-5)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = np.log([0.05, 0.4, 0.3, 1.0, 0.15, 0.1])
    row = [*logits, 0.0, 0.0]
    uniforms = np.arange(100) / 100
    kept = {
        top_p: sorted(
            set(draw([row] * 100, SamplingConfig(temperature=1.0, top_p=top_p), uniforms)[0])
        )
        for top_p in (1e-9, 0.39, 0.41, 0.69, 0.71, 0.96)
    }
    assert kept == {
        1e-9: [1],
        0.39: [1],
        0.41: [1, 2],
        0.69: [1, 2],
        0.71: [1, 2, 4],
        0.96: [0, 1, 2, 4, 5],
    }


def test_top_p_counts_within_what_top_k_left() -> None:
    logits = np.log([0.05, 0.4, 0.3, 1.0, 0.15, 0.1])
    config = SamplingConfig(temperature=1.0, top_k=2, top_p=0.56)
    # Among the two best, id 1 has 0.4 / 0.7 = 0.571, which reaches 0.56 alone.
    assert set(draw([[*logits, 0.0, 0.0]] * 50, config, np.arange(50) / 50)[0]) == {1}


def test_tiny_temperature_is_greedy_and_does_not_overflow() -> None:
    tokens, confidence = draw([ROW], SamplingConfig(temperature=1e-37), [0.999])
    assert tokens == [1]
    assert confidence == [1.0]


def test_rows_do_not_depend_on_their_batch() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 8, generator=random) * 3
    uniforms = np.random.default_rng(0).random(40)
    for config in (
        SamplingConfig(temperature=1.3),
        SamplingConfig(temperature=1.0, top_k=4, top_p=0.8),
    ):
        together = draw(logits, config, uniforms)[0]
        alone = [draw(logits[i : i + 1], config, uniforms[i : i + 1])[0][0] for i in range(40)]
        assert together == alone
        assert len(set(together)) > 2


def test_drawn_frequencies_are_the_filtered_probabilities() -> None:
    config = SamplingConfig(temperature=1.5, top_k=4)
    n = 4000
    tokens, _ = draw([ROW] * n, config, (np.arange(n) + 0.5) / n)
    p = softmax(VALID_LOGITS / 1.5)
    p[4] = 0.0  # the least likely of five
    frequencies = np.bincount(tokens, minlength=6) / n
    np.testing.assert_allclose(frequencies, p / p.sum(), atol=1 / n)
