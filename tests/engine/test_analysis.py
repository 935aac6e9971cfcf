"""What an observed run records: the rule's own importance, every decode step, no changed token."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from engine_serving import make_point, make_requests, make_workload, random_model, serve
from qwen2_reference import build_qwen2, qwen2_model
from torch import Tensor

from focus_bench.core.decodability import DecodabilityRecords
from focus_bench.core.errors import UsageError
from focus_bench.decoding import eviction
from focus_bench.engine.analysis import observe_decoding
from focus_bench.engine.models.sdar import SdarModel
from focus_bench.engine.runner import run_point

B = 8
PROMPTS = [5, 16, 11]


def rows_of(records: DecodabilityRecords) -> Iterator[slice]:
    for start, stop in zip(records.row_starts[:-1], records.row_starts[1:], strict=True):
        yield slice(int(start), int(stop))


def test_observing_changes_no_token_and_misses_no_step() -> None:
    model, point = random_model(), make_point("baseline", page_size=5)
    workload = make_workload(make_requests(PROMPTS, 22))
    records, run = observe_decoding(model, point, workload, alphas=(1.2, 2.1))
    plain, _ = run_point(model, point, workload)
    for request, ids in plain.output_ids.items():
        np.testing.assert_array_equal(run.output_ids[request], ids)
    assert len(records.masked_per_row) == sum(r.decode_steps for r in run.requests)
    assert records.decoded.sum() == sum(r.decoded_tokens for r in run.requests)
    assert (records.decoded_per_row >= 1).all()
    assert records.importance.shape == (len(records.decoded), model.spec.num_layers)
    assert records.kept.shape == (len(records.decoded), 2)
    heads = model.spec.num_q_heads
    for row in rows_of(records):
        size = row.stop - row.start
        sums = records.importance[row].sum(axis=0)
        np.testing.assert_allclose(sums, heads * size, rtol=1e-5)
        assert (np.diff(records.position[row]) > 0).all()
        assert records.rank[row].tolist() == list(range(size))
        passing = records.confidence[row] >= point.decode.threshold
        if not passing.any():
            passing[records.confidence[row].argmax()] = True
        assert records.decoded[row].tolist() == passing.tolist()


def test_a_larger_alpha_keeps_no_fewer_and_the_first_step_keeps_what_focus_keeps() -> None:
    model, requests = random_model(), make_requests(PROMPTS[:1], 22)
    point = make_point("baseline", page_size=5)
    records, _ = observe_decoding(model, point, make_workload(requests), alphas=(1.0, 4.0))
    assert records.kept[:, 1].sum() > records.kept[:, 0].sum()
    focus = serve(model, make_point("focus", page_size=5, alpha=4.0), requests).forwards[0][0]
    first = next(rows_of(records))
    kept = records.position[first][records.kept[first, 1]].tolist()
    assert kept == [p for p in focus.kept if p >= PROMPTS[0]]


def test_recorded_importance_is_the_rules_on_a_captured_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model(num_layers=4)
    seen: list[tuple[Tensor, Tensor]] = []
    project = SdarModel.project

    def capture(self: SdarModel, layer: int, *arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = project(self, layer, *arguments)
        seen.append((q.clone(), k.clone()))
        return q, k, v

    monkeypatch.setattr(SdarModel, "project", capture)
    # Five prompt tokens: no prefill, so the first projections are the first step's.
    point, requests = make_point("baseline"), make_requests([5], 6)
    records, _ = observe_decoding(model, point, make_workload(requests))
    first = next(rows_of(records))
    assert records.position[first].tolist() == [5, 6, 7]
    for layer in range(4):
        q, k = (part[5:].numpy() for part in seen[layer])
        np.testing.assert_allclose(
            records.importance[first, layer], eviction.importance(q, k), rtol=2e-5, atol=2e-5
        )


def test_kept_positions_follow_the_rule_stated_by_loops() -> None:
    model, alpha = random_model(num_layers=3), 1.2
    point = make_point("baseline", page_size=5, threshold=0.25)
    workload = make_workload(make_requests([16], 40, seed=2))
    records, _ = observe_decoding(model, point, workload, alphas=(alpha,))
    delta, brought_back, before = records.delta(1, 0), 0, 0
    tokens = steps = 0
    progress = -1
    for row in rows_of(records):
        masked = records.position[row].tolist()
        if len(masked) == B:
            tokens, steps, progress = 0, 0, -1
        average = Fraction(tokens, steps) if steps else Fraction(1)
        budget = min(len(masked), max(1, math.ceil(Fraction(str(alpha)) * average)))
        value = dict(zip(masked, delta[row].tolist(), strict=True))
        kept = set(masked)
        if len(masked) > budget:
            mean = sum(value.values()) / len(masked)
            std = math.sqrt(sum((v - mean) ** 2 for v in value.values()) / len(masked))
            outliers = sum(v >= mean + std for v in value.values()) if std else 0
            best = sorted(masked, key=lambda p: (-value[p], p))[: max(budget, outliers)]
            kept = set(best) | {p for p in masked if p + 1 in best}
            back = {p for p in masked if progress < p < max(kept)} - kept
            brought_back += len(back)
            before += len(kept)
            kept |= back
        assert records.position[row][records.kept[row, 0]].tolist() == sorted(kept)
        decoded_before = [p for p in range(B) if p not in masked]
        progress = max([progress, *kept, *decoded_before])
        tokens, steps = tokens + int(records.decoded[row].sum()), steps + 1
    assert brought_back > 0
    assert before < len(delta)


def test_what_cannot_be_observed_is_refused_by_name() -> None:
    workload = make_workload(make_requests([5], 6))
    with pytest.raises(UsageError, match="--policy"):
        observe_decoding(random_model(), make_point("focus"), workload)
    with pytest.raises(UsageError, match=r"'qwen2-reference'.*not shifted"):
        observe_decoding(qwen2_model(build_qwen2()), make_point("baseline"), workload)
    with pytest.raises(UsageError, match="at least 2 layers"):
        observe_decoding(random_model(num_layers=1), make_point("baseline"), workload)


def test_a_dead_model_is_an_error_not_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    model, logits = random_model(), SdarModel.logits
    monkeypatch.setattr(SdarModel, "logits", lambda *arguments: logits(*arguments) * torch.nan)
    with pytest.raises(ArithmeticError, match="not finite"):
        observe_decoding(model, make_point("baseline"), make_workload(make_requests([5], 6)))
