"""Faults that engines of this kind have had, as inputs: limits, wrong ids, dead logits, memory."""

import dataclasses

import pytest
import torch
from engine_serving import (
    BATCH_INDEPENDENT_POLICIES,
    Served,
    alone,
    make_point,
    make_requests,
    make_workload,
    random_model,
    serve,
)
from qwen3_reference import MASK_TOKEN_ID
from torch import Tensor

from focus_bench.core.config import (
    POLICY_NAMES,
    UNMASKING_STRATEGIES,
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    SamplingConfig,
)
from focus_bench.core.errors import CapacityError, UsageError
from focus_bench.decoding.rules import StepRules
from focus_bench.engine import device
from focus_bench.engine.executor import EngineExecutor
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.sdar import SdarModel
from focus_bench.engine.runner import run_point, warm_up
from focus_bench.engine.weights import load_model

DEAD_TOKEN_ID = 99  # its embedding is NaN; at or past the tokenizer's size, so never put out
TOKENIZER_SIZE = 98
ALL_POLICIES = (*BATCH_INDEPENDENT_POLICIES, "adaptive")
every_policy = pytest.mark.parametrize("policy", ALL_POLICIES)


# -- lengths and stops ---------------------------------------------------------------------------


@every_policy
@pytest.mark.parametrize("block_length", [4, 32])
def test_five_new_tokens_are_five(policy: str, block_length: int) -> None:
    point = make_point(policy, block_length=block_length, threshold=0.05)
    requests = make_requests([3, 6, 37], 5)
    record, _ = run_point(random_model(), point, make_workload(requests))
    assert [len(record.output_ids[i]) for i in range(3)] == [5, 5, 5]
    assert [r.output_tokens for r in record.requests] == [5, 5, 5]
    assert {r.finish_reason for r in record.requests} == {"length"}
    # Positions behind the cut were decoded along, and are not output.
    assert block_length == 4 or any(r.decoded_tokens > 5 for r in record.requests)


@pytest.mark.usefixtures("decisive_margins")
@every_policy
@pytest.mark.parametrize("include_stop_token", [True, False])
def test_one_of_two_ends_in_its_first_block(policy: str, include_stop_token: bool) -> None:
    point = make_point(policy, include_stop_token=include_stop_token)
    requests = make_requests([5, 16], 25)
    whole = serve(random_model(), point, requests).outputs
    stop_id = next(t for t in whole[0][:3] if t not in whole[1])
    model = random_model(stop_token_ids=(stop_id,))
    served = serve(model, point, requests)
    assert served.reasons == {0: "stop", 1: "length"}
    until_stop = whole[0][: whole[0].index(stop_id) + 1]
    assert served.outputs[0] == (until_stop if include_stop_token else until_stop[:-1])
    assert served.outputs[1] == whole[1]
    assert served.record.requests[0].output_tokens == len(served.outputs[0])
    if policy != "adaptive":
        assert served.outputs == alone(model, point, requests)


# -- masks, padding and dead logits --------------------------------------------------------------


@every_policy
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_mask_and_padding_are_never_put_out(policy: str, temperature: float) -> None:
    point = make_point(policy, temperature=temperature)
    requests = make_requests([5, 16, 11], 30, num_ids=20)
    free = serve(random_model(), point, requests).outputs
    produced = {t for output in free.values() for t in output}
    assert any(t >= 50 for t in produced)
    mask_id = next(t for t in sorted(produced) if 20 <= t < 50)  # a wrong one: an ordinary word
    model = random_model(tokenizer_size=50, mask_token_id=mask_id)
    for output in serve(model, point, requests).outputs.values():
        assert len(output) == 30
        assert mask_id not in output
        assert max(output) < 50


def test_a_mask_id_beyond_the_vocabulary_is_refused_by_name() -> None:
    config = EngineConfig(model="dummy-tiny", device="cpu", mask_token_id=320)
    with pytest.raises(UsageError, match=r"^--mask-token-id: 320 .* 0 to 319"):
        load_model(config)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (MASK_TOKEN_ID, "request 1: 'mask token 96 at position 4'.* other than the mask token 96"),
        (101, "request 1: 'token 101 at position 4'.* ids from 0 to 100"),
        (-1, "request 1: 'token -1 at position 4'"),
    ],
)
def test_prompts_with_ids_that_are_no_text_are_refused(token: int, message: str) -> None:
    requests = make_requests([5, 16], 5)
    requests[1].prompt_ids[4] = token
    with pytest.raises(UsageError, match=message):
        run_point(random_model(), make_point("focus"), make_workload(requests))


@pytest.mark.parametrize("mask_token_id", [0, 50, 100])
def test_warming_up_works_with_any_mask_id(mask_token_id: int) -> None:
    warm_up(random_model(mask_token_id=mask_token_id), make_point("focus"))


class NegativeInfinity(SdarModel):
    """Rows whose logits would be NaN are all -inf instead."""

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        return torch.where(logits.isnan(), -torch.inf, logits)


def model_with_a_dead_token(kind: str) -> SdarModel:
    model = random_model(tokenizer_size=TOKENIZER_SIZE)
    embedding = model.embedding.clone()
    embedding[DEAD_TOKEN_ID] = torch.nan
    model_class = SdarModel if kind == "NaN" else NegativeInfinity
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    return model_class(**{**fields, "embedding": embedding})


@pytest.mark.usefixtures("decisive_margins")
@every_policy
@pytest.mark.parametrize("kind", ["NaN", "-inf"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_dead_logits_fail_their_request_and_no_other(
    policy: str, kind: str, temperature: float
) -> None:
    model = model_with_a_dead_token(kind)
    point = make_point(policy, temperature=temperature, retain=3, seed=5)
    requests = make_requests([5, 16, 11, 9], 18)
    healthy = serve(model, point, [r for r in requests if r.request_id != 2])
    requests[2].prompt_ids[3] = DEAD_TOKEN_ID
    served = serve(model, point, requests)
    failed = served.record.requests[2]
    assert served.reasons == {0: "length", 1: "length", 2: "error", 3: "length"}
    assert "confidence at position 11 is not finite" in failed.error
    assert served.outputs[2] == []
    assert failed.output_tokens == failed.decoded_tokens == 0
    if policy != "adaptive":
        assert {**healthy.outputs, 2: []} == served.outputs


def test_dead_logits_fail_the_request_where_they_appear() -> None:
    """What was put out before stays; positions decoded in the failing step do not count."""
    model = random_model(tokenizer_size=TOKENIZER_SIZE)
    point = make_point("focus")
    requests = make_requests([5], 30)
    whole = serve(model, point, requests)
    dead = next(t for t in whole.outputs[0][12:] if t not in whole.outputs[0][:12])
    embedding = model.embedding.clone()
    embedding[dead] = torch.nan
    served = serve(dataclasses.replace(model, embedding=embedding), point, requests)
    assert served.reasons == {0: "error"}
    output = served.outputs[0]
    assert 3 <= len(output) < 30
    assert output == whole.outputs[0][: len(output)]


@pytest.mark.parametrize("acceptance", ["confidence", "synthetic"])
def test_a_model_that_is_dead_everywhere_puts_out_nothing(acceptance: str) -> None:
    model = random_model()
    dead = dataclasses.replace(model, head=torch.full_like(model.head, torch.nan))
    injected = {
        "acceptance": AcceptanceConfig(kind="synthetic", mean=2.0),
        "importance": ImportanceConfig(kind="synthetic", tau=1.0),
    }
    point = make_point("focus", **(injected if acceptance == "synthetic" else {}))  # type: ignore[arg-type]
    served = serve(dead, point, make_requests([5, 16], 9))
    assert served.reasons == {0: "error", 1: "error"}
    assert served.outputs == {0: [], 1: []}


# -- combinations --------------------------------------------------------------------------------


def assert_static_counts(served: Served, per_step: int) -> None:
    """Every step decodes `per_step` positions, or all the masks that it keeps."""
    for forwards in served.forwards.values():
        masked = None
        for f in forwards:
            if f.is_commit:
                masked = None
                continue
            masked = set(f.fed) if masked is None else masked
            assert len(f.decoded) == min(per_step, len(masked & set(f.kept)))
            masked -= set(f.decoded)


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("strategy", UNMASKING_STRATEGIES)
def test_every_pair_of_strategy_and_policy_runs(strategy: str, policy: str) -> None:
    point = make_point(policy, unmasking_strategy=strategy, steps=4, retain=3)
    requests = make_requests([8, 16], 17)
    served = serve(random_model(), point, requests)
    assert served.reasons == {0: "length", 1: "length"}
    assert [len(served.outputs[i]) for i in range(2)] == [17, 17]
    if strategy != "low_confidence_dynamic":
        assert_static_counts(served, per_step=2)


@pytest.mark.parametrize("strategy", UNMASKING_STRATEGIES[1:])
def test_synthetic_acceptance_replaces_the_strategy(strategy: str) -> None:
    acceptance = AcceptanceConfig(kind="synthetic", mean=2.0)
    with pytest.raises(UsageError, match=f"--unmasking-strategy: '{strategy}'"):
        make_point("focus", unmasking_strategy=strategy, acceptance=acceptance)


def executor_for(model: SdarModel, policy: str) -> EngineExecutor:
    rules = StepRules(
        decode=DecodeConfig(policy=policy, block_length=8),
        acceptance=AcceptanceConfig(),
        importance=ImportanceConfig(),
        seed=0,
    )
    cache = PagedKVCache(
        model.spec, num_pages=4, page_size=8, device=model.device, dtype=model.dtype
    )
    return EngineExecutor(model, cache, rules, SamplingConfig())


@pytest.mark.parametrize("policy", ["focus", "focus-fixed", "ideal", "adaptive"])
def test_eviction_needs_two_layers(policy: str) -> None:
    executor_for(random_model(num_layers=2), policy)
    with pytest.raises(UsageError, match=rf"--policy: '{policy}'.*qwen3-reference: 1 layer"):
        executor_for(random_model(num_layers=1), policy)


# -- memory and device ---------------------------------------------------------------------------


def test_more_pages_than_memory_are_refused_before_the_first_step() -> None:
    point = make_point("focus", num_pages=10**9)
    with pytest.raises(CapacityError, match=r"--num-pages: .*1000000000 \([\d,]+ bytes wanted"):
        run_point(random_model(), point, make_workload(make_requests([5], 5)))


def test_a_hundredth_of_the_memory_holds_no_page_of_a_large_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("focus_bench.engine.memory.free_bytes", lambda device: (20_000, 20_000))
    engine = EngineConfig(model="test", device="cpu", gpu_memory_utilization=0.01)
    point = dataclasses.replace(make_point("focus", page_size=64), engine=engine)
    with pytest.raises(CapacityError, match=r"49,152 bytes wanted for one page.*200 bytes had"):
        run_point(random_model(), point, make_workload(make_requests([5], 5)))


def test_a_request_larger_than_the_pool_fails_by_name_and_the_others_finish() -> None:
    requests = make_requests([5, 60, 11], 12)
    served = serve(random_model(), make_point("focus", num_pages=5), requests)
    assert served.reasons == {0: "length", 1: "error", 2: "length"}
    assert "needs 9 pages of 8 tokens; allowed: 5" in served.record.requests[1].error


def test_without_a_gpu_the_run_says_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = EngineConfig(model="dummy-tiny", device="auto")
    model = load_model(config)
    point = dataclasses.replace(make_point("focus"), engine=config)
    record, _ = run_point(model, point, make_workload(make_requests([5], 5)))
    assert record.settings["device"] == "cpu"
    assert record.settings["cuda"] == ""
    assert record.settings["dtype"] == "float32"
    assert record.notes == ("dummy weights",)
    with pytest.raises(UsageError, match=r"--device: 'cuda'.*no CUDA device"):
        load_model(dataclasses.replace(config, device="cuda"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_of_logits_are_cut_to_a_bound(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows need logits, only so many bytes of them exist at once."""
    from focus_bench.engine import host_step

    point = make_point("baseline", temperature=temperature)
    requests = make_requests([5, 16, 11], 20)
    expected = serve(random_model(), point, requests).outputs
    rows: list[int] = []

    class Counting(SdarModel):
        def logits(self, hidden: Tensor) -> Tensor:
            rows.append(len(hidden))
            return super().logits(hidden)

    model = random_model()
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    monkeypatch.setattr(host_step, "MAX_LOGIT_BYTES", 4 * 101 * 5)
    assert serve(Counting(**fields), point, requests).outputs == expected
    assert max(rows) == 5


@pytest.mark.parametrize(
    ("asked", "variable", "cores", "used"),
    [(None, "", 8, 7), (None, "", 1, 1), (None, "3", 8, 3), (None, "2,4", 8, 2), (5, "3", 8, 5)],
)
def test_one_core_is_left_free_unless_threads_are_named(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, variable: str, cores: int, used: int
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr("focus_bench.core.cpu_threads.usable_cores", lambda: cores)
    try:
        assert device.use_cpu_threads(asked) == torch.get_num_threads() == used
    finally:
        torch.set_num_threads(before)
