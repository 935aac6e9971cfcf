"""Known faults of tools of this kind, as far as scheduling decides them; numbered as listed."""

import pytest
from fakes import make_request
from scheduling_cases import Harness, harness

from focus_bench.core.config import AcceptanceConfig

ONE_A_STEP = AcceptanceConfig(kind="synthetic", mean=1.0)
POLICIES = ("baseline", "delayed-cache", "delayed-cache-neighbor", "focus", "focus-fixed", "ideal")


def reasons(run: Harness) -> dict[int, tuple[str, int]]:
    return {i: (e.reason, e.num_output_tokens) for i, e in run.finished.items()}


def test_fault_08_prompt_of_the_models_maximum_and_one_less() -> None:
    run = harness(max_positions=64, num_pages=64)
    run.submit(make_request(0, 64, 1), make_request(1, 63, 1), make_request(2, 63, 2))
    run.run()
    assert reasons(run) == {0: ("error", 0), 1: ("length", 1), 2: ("error", 0)}
    assert run.finished[0].error == "needs 72 positions; allowed: 64 of the model"


def test_fault_08_request_larger_than_the_pool_is_rejected_at_once_by_name() -> None:
    run = harness(num_pages=4)
    run.submit(make_request(0, 5, 8), make_request(1, 20, 13), make_request(2, 5, 8))
    assert list(run.finished) == [1]
    assert "needs 5 pages of 8 tokens; allowed: 4, the whole pool" in run.finished[1].error
    run.run()
    assert reasons(run) == {1: ("error", 0), 0: ("length", 8), 2: ("length", 8)}


@pytest.mark.parametrize("policy", POLICIES)
def test_fault_09_pool_for_one_and_a_half_of_two_requests(policy: str) -> None:
    run = harness(policy=policy, num_pages=6, batch_size=2, acceptance=ONE_A_STEP)
    run.submit(make_request(0, 3, 29), make_request(1, 3, 29))  # 4 pages each
    run.run()
    assert reasons(run) == {0: ("length", 29), 1: ("length", 29)}
    assert run.finish_order == [0, 1]
    assert run.finished[1].preemptions >= 1
    run.check_equals_alone(1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [2, 5])
def test_fault_09_pool_for_all_but_one_of_growing_requests(policy: str, count: int) -> None:
    """Progress is monotone: the harness asserts that the oldest goes on in every step."""
    run = harness(policy=policy, num_pages=3 * (count - 1), batch_size=count, acceptance=ONE_A_STEP)
    run.submit(*(make_request(i, 2, 22) for i in range(count)))
    run.run()
    assert reasons(run) == {i: ("length", 22) for i in range(count)}
    for request_id in range(count):
        run.check_equals_alone(request_id)


@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_fault_09_batch_of_256_on_8_pages(policy: str) -> None:
    run = harness(policy=policy, num_pages=8, batch_size=256, page_size=16)
    run.submit(*(make_request(i, 1 + i % 30, 1 + (7 * i) % 40) for i in range(256)))
    run.run()
    assert reasons(run) == {i: ("length", 1 + (7 * i) % 40) for i in range(256)}
    assert max(p.pages_used for p in run.plans) == 8


@pytest.mark.parametrize("policy", POLICIES)
def test_fault_11_prompts_that_share_a_page_and_arrivals_during_decoding(policy: str) -> None:
    run = harness(policy=policy, batch_size=3)
    first = make_request(0, 11, 20)
    run.submit(first)
    for _ in range(3):
        run.step()
    # Its prompt's first page is the same tokens; then one more arrives while both decode.
    twin = make_request(1, 19, 20)
    twin.prompt_ids[:8] = first.prompt_ids[:8]
    run.submit(twin)
    for _ in range(2):
        run.step()
    run.submit(make_request(2, 6, 20))
    run.run()
    for request_id in range(3):
        run.check_equals_alone(request_id)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block_length", [4, 32])
@pytest.mark.parametrize("mean", [1.0, 3.0, 64.0])
@pytest.mark.parametrize("prompt", [1, 31, 32])
def test_fault_12_exactly_five_tokens(
    policy: str, block_length: int, mean: float, prompt: int
) -> None:
    run = harness(
        policy=policy,
        block_length=block_length,
        acceptance=AcceptanceConfig(kind="synthetic", mean=mean, scatter=1.0),
    )
    run.submit(make_request(0, prompt, 5))
    run.run()
    assert reasons(run) == {0: ("length", 5)}
    assert run.visible[0] == 5


@pytest.mark.parametrize("policy", POLICIES)
def test_fault_12_one_of_two_stops_in_its_first_block(policy: str) -> None:
    """Nothing after the stop token is counted or shown, and the other does not notice."""
    probe = harness(policy=policy)
    probe.submit(make_request(0, 3, 24), make_request(1, 3, 24))
    probe.run()
    output = probe.finished[0].output_ids.tolist()
    stop = next(t for t in output[1:4] if t not in probe.finished[1].output_ids)
    run = harness(policy=policy, stop_token_ids=(stop,))
    run.submit(make_request(0, 3, 24), make_request(1, 3, 24))
    run.run()
    cut = output.index(stop) + 1
    assert run.finished[0].output_ids.tolist() == output[:cut]
    assert reasons(run) == {0: ("stop", cut), 1: ("length", 24)}
    assert run.visible == {0: cut, 1: 24}
    for request_id in range(2):
        run.check_equals_alone(request_id)


def test_fault_13_confidences_that_are_not_finite_end_their_request_by_name() -> None:
    run = harness(errors={1: "request 1: confidence is not finite at position 3"})
    run.submit(*(make_request(i, 3, 9) for i in range(3)))
    run.run()
    assert reasons(run) == {0: ("length", 9), 1: ("error", 0), 2: ("length", 9)}
    assert run.finished[1].error == "request 1: confidence is not finite at position 3"


def test_fault_20_five_of_ten_prompts_are_impossible() -> None:
    run = harness(num_pages=4)
    run.submit(*(make_request(i, 40 if i % 2 else 4, 8) for i in range(10)))
    run.run()
    failed = {i for i, (reason, _) in reasons(run).items() if reason == "error"}
    assert failed == {1, 3, 5, 7, 9}
    assert all("needs 6 pages" in run.finished[i].error for i in failed)
    assert all(reasons(run)[i] == ("length", 8) for i in set(range(10)) - failed)


def test_fault_21_prompt_fits_while_prompt_and_output_do_not() -> None:
    run = harness(num_pages=4)
    run.submit(make_request(0, 30, 8))
    assert run.finished[0].reason == "error"
    assert "needs 5 pages" in run.finished[0].error
    assert run.step() is None
