"""Random schedules: requests come, are aborted and served, on pools that are too small for all.

Every step is checked by the harness: page ownership and contents, plan invariants, integrity. At
the end every request has ended once and equals its run alone.
"""

from fakes import make_request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scheduling_cases import Harness, harness

from focus_bench.core.config import AcceptanceConfig

POLICIES = (
    "baseline",
    "delayed-cache",
    "delayed-cache-neighbor",
    "focus",
    "focus-fixed",
    "adaptive",
    "ideal",
    "fast-dllm-v2",
)
ACCEPTANCES = (
    AcceptanceConfig(),
    AcceptanceConfig(kind="synthetic", mean=1.3),
    AcceptanceConfig(kind="synthetic", mean=5.0, scatter=3.0),
)
STOP = 240


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, aborts and steps at random, then drains."""

    served: Harness

    @initialize(
        block_length=st.sampled_from((4, 8, 32)),
        page_size=st.sampled_from((1, 3, 4, 8, 12, 32, 64)),
        policy=st.sampled_from(POLICIES),
        batch_size=st.integers(1, 6),
        kind=st.sampled_from(("continuous", "continuous", "continuous", "static")),
        acceptance=st.sampled_from(ACCEPTANCES),
        tightness=st.integers(0, 3),
        prefill_blocks=st.integers(1, 4),
        steps_per_round=st.sampled_from((1, 1, 2, 5)),
        stops=st.booleans(),
        include=st.booleans(),
        shifted=st.booleans(),
    )
    def start(
        self,
        block_length: int,
        page_size: int,
        policy: str,
        batch_size: int,
        kind: str,
        acceptance: AcceptanceConfig,
        tightness: int,
        prefill_blocks: int,
        steps_per_round: int,
        stops: bool,
        include: bool,
        shifted: bool,
    ) -> None:
        self.block_length = block_length
        self.longest = 4 * block_length  # prompt plus output, in tokens
        pages_of_one = -(-self.longest // page_size)
        self.served = harness(
            policy=policy,
            block_length=block_length,
            page_size=page_size,
            num_pages=pages_of_one + tightness * pages_of_one // 2,
            batch_size=batch_size,
            kind=kind,
            max_prefill_tokens=prefill_blocks * block_length + prefill_blocks % 2,
            steps_per_round=steps_per_round,
            acceptance=acceptance,
            stop_token_ids=(STOP,) if stops else (),
            include_stop_token=include,
            shifted_logits=shifted and policy in {"baseline", "fast-dllm-v2"},
        )
        self.equal_alone = policy != "adaptive"
        self.next_id = 0

    @rule(
        prompt=st.integers(0, 100),
        output=st.integers(0, 100),
        too_large=st.sampled_from([0] * 9 + [1]),
    )
    def submit(self, prompt: int, output: int, too_large: int) -> None:
        prompt = 1 + prompt % (self.longest - 1)
        output = 1 + output % (self.longest - prompt)
        pool = self.served.scheduler.pool
        if too_large:
            output = pool.num_pages * pool.page_size + 1
        self.served.submit(make_request(self.next_id, prompt, output))
        assert (self.next_id in self.served.finished) == bool(too_large)
        self.next_id += 1

    @rule(count=st.integers(2, 6), prompt=st.integers(0, 5), shorter=st.integers(0, 5))
    def submit_growing(self, count: int, prompt: int, shorter: int) -> None:
        """Short prompts and long outputs: all fit at first, and then they grow."""
        for extra in range(count):
            self.submit(prompt=prompt + extra, output=self.longest // 2 - shorter, too_large=0)

    @precondition(lambda self: self.next_id > 0)
    @rule(which=st.integers(0, 1000))
    def fail(self, which: int) -> None:
        """The executor fails this request as soon as it decodes."""
        self.served.executor.errors[which % self.next_id] = "confidence is not finite"

    @precondition(lambda self: self.next_id > 0)
    @rule(which=st.integers(0, 1000), during=st.booleans())
    def abort(self, which: int, during: bool) -> None:
        request_id = which % (self.next_id + 1)
        lives = request_id in self.served.live
        if during:
            known: list[bool] = []
            plan = self.served.step(lambda: known.append(self.served.scheduler.abort(request_id)))
            assert plan is None or known == [lives]
            assert plan is None or request_id not in self.served.live
        else:
            assert self.served.abort(request_id) == lives
            if lives:
                assert self.served.finished[request_id].reason == "aborted"

    @rule(count=st.integers(1, 30))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.served.step() is None:
                break

    def teardown(self) -> None:
        if not hasattr(self, "served") or self.served.failed:
            return
        served = self.served
        served.run()
        assert served.live == []
        assert set(served.finished) == set(served.specs)
        assert served.scheduler.pool.num_used == 0
        assert served.scheduler.num_running == served.scheduler.num_waiting == 0
        for number, (request_id, end) in enumerate(served.finished.items()):
            if end.reason == "error":
                assert end.error
                assert bool(served.masks[request_id]) == ("pool" not in end.error)
                continue
            if end.reason == "length":
                assert end.num_output_tokens == served.specs[request_id].max_new_tokens
            served.check_prefill(request_id)
            if self.equal_alone and number % 3 == 0:
                STATISTICS["steps"] += served.check_equals_alone(request_id)
        STATISTICS["steps"] += len(served.plans)
        STATISTICS["preemptions"] += sum(e.preemptions for e in served.finished.values())


STATISTICS = {"steps": 0, "preemptions": 0}


def test_random_schedules() -> None:
    """Tens of thousands of checked steps, those of the runs alone included."""
    STATISTICS.update(steps=0, preemptions=0)
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=260, stateful_step_count=15, deadline=None, derandomize=True
        ),
    )
    assert STATISTICS["steps"] > 20_000
    assert STATISTICS["preemptions"] > 100
