"""The Python interface: what the commands use, called as a user would."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import focus_bench
from focus_bench.api import Engine, load_workload, make_point, simulate
from focus_bench.api.prediction import hardware_of_device
from focus_bench.core.config import EngineConfig, PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.records import RunRecord


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("dummy-tiny", device="cpu")


def test_the_top_level_names_are_the_interface() -> None:
    assert focus_bench.Engine is Engine
    assert focus_bench.simulate is simulate
    with pytest.raises(AttributeError, match="nothing"):
        _ = focus_bench.nothing


def test_a_batch_of_prompts_gives_each_what_it_gets_alone(engine: Engine) -> None:
    prompts = ["one", "a second prompt", "the third, longer than a block of thirty-two bytes"]
    together = engine.generate(prompts, max_new_tokens=20)
    for prompt, completion in zip(prompts, together, strict=True):
        assert len(completion.token_ids) == 20
        assert completion.finish_reason == "length"
        assert completion.num_prompt_tokens == len(prompt) + 2  # user and assistant marker
        assert "dummy weights" in completion.notes
    # Random streams belong to a request's number, so only the first prompt has the same one alone.
    (alone,) = engine.generate(prompts[0], max_new_tokens=20)
    assert np.array_equal(alone.token_ids, together[0].token_ids)
    assert alone.text == together[0].text == engine.tokenizer.decode(alone.token_ids)


def test_raw_prompts_have_no_chat_form(engine: Engine) -> None:
    (completion,) = engine.generate("four", max_new_tokens=1, chat=False)
    assert completion.num_prompt_tokens == 4


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_a_blank_prompt_is_refused(engine: Engine, prompt: str) -> None:
    with pytest.raises(UsageError, match="prompt 1"):
        engine.generate(["fine", prompt])


def test_a_prompt_as_long_as_the_model_is_refused_and_one_less_block_is_not(
    engine: Engine,
) -> None:
    positions = engine.spec.max_position_embeddings
    with pytest.raises(UsageError, match=f"needs {positions + 32} positions"):
        engine.generate("x" * positions, max_new_tokens=1, chat=False)
    (completion,) = engine.generate("x" * (positions - 1), max_new_tokens=1, chat=False)
    assert len(completion.token_ids) == 1


def test_measured_and_predicted_runs_of_a_point_take_the_same_steps(
    engine: Engine, tmp_path: Path
) -> None:
    point = make_point(
        model="dummy-tiny",
        dataset="synthetic",
        num_prompts=4,
        max_new_tokens=16,
        batch_size=2,
        device="cpu",
    )
    workload = load_workload(point)
    trace_file = tmp_path / "new" / "trace.npz"
    measured = engine.run(point, workload, trace_file=trace_file)
    predicted = simulate(point, workload, hardware="h200")
    assert (measured.source, predicted.source) == ("measured", "predicted")

    def steps(record: RunRecord) -> list[tuple[int, ...]]:
        return [
            (s.num_rows, s.prefill_tokens, s.fed_tokens, s.kept_tokens, s.decoded_tokens)
            for s in record.steps
        ]

    assert steps(measured) == steps(predicted)
    assert trace_file.is_file()


def test_an_engine_refuses_points_of_another_model(engine: Engine) -> None:
    for other in (
        make_point(model="sdar-4b"),
        make_point(model="dummy-tiny", device="cpu", seed=1),
    ):
        with pytest.raises(UsageError, match="point"):
            engine.check(other)
    with pytest.raises(UsageError, match="'ideal'"):
        engine.check(make_point(model="dummy-tiny", device="cpu", policy="ideal"))


def test_a_point_has_the_command_lines_defaults() -> None:
    assert make_point() == PointConfig(engine=EngineConfig(model="focus-tiny"))
    point = make_point(model="dummy-tiny")
    assert point == dataclasses.replace(
        PointConfig(engine=EngineConfig(model="dummy-tiny", load_format="dummy")),
        acceptance=point.acceptance,
        importance=point.importance,
    )
    assert point.acceptance.preset == "sharegpt"


def test_devices_with_a_data_sheet_are_known_by_pytorchs_name() -> None:
    assert hardware_of_device("NVIDIA H200") == "h200"
    assert hardware_of_device("cpu") == "cpu"
    with pytest.raises(UsageError, match="NVIDIA H200"):
        hardware_of_device("NVIDIA GeForce RTX 4090")
