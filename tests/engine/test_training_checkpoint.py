"""Resuming: exact from a full checkpoint, nearly so from a compact one; what is refused."""

from pathlib import Path

import pytest
import torch
from training_cases import EOS, MASK, TINY, documents

from focus_bench.core.errors import UsageError
from focus_bench.engine.training.checkpoint import (
    FULL_FILE,
    TrainingState,
    load_state,
    new_state,
    save_compact,
    save_full,
)
from focus_bench.engine.training.model import CPU_EXECUTION, Forward
from focus_bench.engine.training.optimizer import learning_rate
from focus_bench.engine.training.trainer import Trainer

CPU = torch.device("cpu")
SPEC = TINY.model_spec(mask_token_id=MASK, eos_token_id=EOS)


def run(state: TrainingState, steps: int) -> list[float]:
    trainer = Trainer(
        TINY, state, documents(), None, forward=Forward(TINY, SPEC, CPU_EXECUTION, CPU)
    )
    return [float(trainer.step().loss) for _ in range(steps)]


def test_a_full_checkpoint_goes_on_exactly(tmp_path: Path) -> None:
    straight = new_state(TINY, SPEC, CPU)
    losses = run(straight, 7)
    broken = new_state(TINY, SPEC, CPU)
    assert run(broken, 4) == losses[:4]
    save_full(broken, tmp_path)
    resumed = load_state(tmp_path, TINY, SPEC, CPU)
    assert resumed.step == 4
    assert run(resumed, 3) == losses[4:]
    for name in straight.weights:
        assert torch.equal(straight.weights[name], resumed.weights[name])
        assert torch.equal(straight.average[name], resumed.average[name])
    assert not list(tmp_path.glob("*.tmp"))


def test_a_compact_checkpoint_keeps_all_but_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("focus_bench.engine.training.checkpoint.MAX_COMPACT_SHARD_BYTES", 100_000)
    state = new_state(TINY, SPEC, CPU)
    run(state, 5)
    save_compact(state, tmp_path)
    shards = list(tmp_path.iterdir())
    assert len(shards) > 1
    assert all(path.stat().st_size < 100_000 + 20_000 for path in shards)  # 20 kB of names
    resumed = load_state(tmp_path, TINY, SPEC, CPU)
    assert resumed.step == 5
    for name, weight in state.weights.items():
        assert torch.equal(resumed.weights[name], weight.half().float())
        assert torch.equal(resumed.average[name], state.average[name].half().float())
        before = state.optimizer.state[weight]
        after = resumed.optimizer.state[resumed.weights[name]]
        assert torch.equal(after["exp_avg_sq"], before["exp_avg_sq"].bfloat16().float())
        assert not after["exp_avg"].any()
        assert float(after["step"]) == 5
    expected, got = run(state, 1), run(resumed, 1)
    assert got[0] == pytest.approx(expected[0], rel=1e-3)  # the same batch, the same noise
    for name, weight in state.weights.items():
        # The first update after the resume is the smaller one: its first moment starts at 0.
        ours = (resumed.weights[name] - weight).detach().abs().max()
        assert ours < 3 * TINY.peak_lr


def test_a_compact_checkpoint_before_the_first_step_is_the_start(tmp_path: Path) -> None:
    save_compact(new_state(TINY, SPEC, CPU), tmp_path)
    resumed = load_state(tmp_path, TINY, SPEC, CPU)
    assert resumed.step == 0
    assert run(resumed, 1)[0] == pytest.approx(run(new_state(TINY, SPEC, CPU), 1)[0], rel=1e-3)


def test_states_that_cannot_be_resumed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"^--resume: .* a folder with training-state\.pt"):
        load_state(tmp_path, TINY, SPEC, CPU)
    monkeypatch.setattr("focus_bench.engine.training.checkpoint.MAX_COMPACT_SHARD_BYTES", 100_000)
    state = new_state(TINY, SPEC, CPU)
    save_compact(state, tmp_path)
    other = TINY.replace(num_layers=3)
    with pytest.raises(UsageError, match=r"num_layers: 2 .* 3 \(the recipe\)"):
        load_state(tmp_path, other, other.model_spec(mask_token_id=MASK, eos_token_id=EOS), CPU)
    shards = sorted(tmp_path.iterdir())
    kept = shards[-1].read_bytes()
    state.step = 9
    save_compact(state, tmp_path)
    shards[-1].write_bytes(kept)
    with pytest.raises(UsageError, match=r"shards of steps 0, 9 .* of one step"):
        load_state(tmp_path, TINY, SPEC, CPU)
    shards[-1].unlink()
    with pytest.raises(UsageError, match=rf"all {len(shards)} shards of one step"):
        load_state(tmp_path, TINY, SPEC, CPU)
    shards[0].write_bytes(kept[:50])
    with pytest.raises(UsageError, match=r"compact-1-of-\d\.safetensors' .* a safetensors file"):
        load_state(tmp_path, TINY, SPEC, CPU)
    (tmp_path / FULL_FILE).write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"training-state\.pt.* a whole training checkpoint"):
        load_state(tmp_path, TINY, SPEC, CPU)


def test_the_learning_rate_warms_up_and_falls_to_its_fraction() -> None:
    recipe = TINY.replace(total_steps=100, warmup_steps=10, peak_lr=1e-3, final_lr_fraction=0.1)
    rates = [learning_rate(recipe, step) for step in range(101)]
    assert rates[0] == pytest.approx(1e-4)
    assert max(rates) == rates[9] == rates[10] == pytest.approx(1e-3)
    assert rates[55] == pytest.approx(0.55e-3)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(1e-4)
