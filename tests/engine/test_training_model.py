"""The training forward pass against the engine: same logits, and a checkpoint that carries them."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from training_cases import EOS, MASK, TINY, documents

from focus_bench.core.model_folder import read_model_folder
from focus_bench.engine.training.attention import FlexRowAttention
from focus_bench.engine.training.check import check_weights, engine_difference
from focus_bench.engine.training.measure import check_against_engine
from focus_bench.engine.training.model import (
    CPU_EXECUTION,
    Execution,
    Forward,
    build_model,
    export_checkpoint,
    initial_weights,
)
from focus_bench.engine.training.noise import NoisedBatch
from focus_bench.engine.training.objective import diffusion_loss
from focus_bench.engine.training.packing import PackedRows
from focus_bench.engine.training.recipe import FOCUS_TINY
from focus_bench.engine.training.trainer import TRAIN, BatchSource
from focus_bench.engine.weights import load_checkpoint

CPU = torch.device("cpu")
RECIPE = TINY.replace(num_layers=3, export_dtype="float32")
SPEC = RECIPE.model_spec(mask_token_id=MASK, eos_token_id=EOS)


def first_batch() -> tuple[PackedRows, NoisedBatch]:
    return BatchSource(RECIPE, documents(), CPU, TRAIN).next()


def test_a_loaded_checkpoint_decodes_what_was_trained(tmp_path: Path) -> None:
    weights = check_weights(SPEC, seed=0, device=CPU)
    export_checkpoint(SPEC, weights, tmp_path)
    loaded = load_checkpoint(tmp_path, read_model_folder(tmp_path), device=CPU)
    forward = Forward(RECIPE, SPEC, CPU_EXECUTION, CPU)
    rows, batch = first_batch()
    difference = engine_difference(forward, weights, loaded, rows, batch, max_contexts=6)
    assert difference < 1e-5


def test_the_exported_folder_names_the_model_as_the_engine_needs_it(tmp_path: Path) -> None:
    spec = SPEC.replace(dtype="bfloat16")
    export_checkpoint(spec, initial_weights(spec, seed=1, device=CPU), tmp_path)
    read = read_model_folder(tmp_path)
    assert read.replace(name=spec.name) == spec
    model = load_checkpoint(tmp_path, read, device=CPU)
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize("fault", ["units", "kinds", "positions"])
def test_the_comparison_with_the_engine_notices_wrong_rows(fault: str) -> None:
    weights = check_weights(SPEC, seed=0, device=CPU)
    model = build_model(SPEC, weights, torch.float32)
    forward = Forward(RECIPE, SPEC, CPU_EXECUTION, CPU)
    rows, batch = first_batch()
    seen = forward.attention
    if fault == "positions":
        batch = dataclasses.replace(batch, positions=batch.positions * 2)
    else:
        change = {"unit": rows.unit * 0 + 1} if fault == "units" else {"kind": rows.kind * 0 + 1}
        wrong = dataclasses.replace(rows, **change)
        original = seen.set_rows
        seen.set_rows = lambda _: original(wrong)  # type: ignore[method-assign]
    assert engine_difference(forward, weights, model, rows, batch, max_contexts=6) > 0.1


def test_bfloat16_stays_within_what_the_driver_allows() -> None:
    execution = Execution(attention="sdpa", is_compiled=False, dtype="bfloat16")
    difference = check_against_engine(RECIPE, documents(), Forward(RECIPE, SPEC, execution, CPU))
    assert 1e-4 < difference < 0.04


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_in_the_model_equals_the_engine() -> None:
    execution = Execution(attention="flex", is_compiled=False, dtype="float32")
    forward = Forward(RECIPE, SPEC, execution, CPU)
    assert isinstance(forward.attention, FlexRowAttention)
    with torch.no_grad():
        assert check_against_engine(RECIPE, documents(), forward) < 1e-5


def test_the_loss_reaches_every_weight() -> None:
    forward = Forward(RECIPE, SPEC, CPU_EXECUTION, CPU)
    weights = initial_weights(SPEC, seed=0, device=CPU)
    for weight in weights.values():
        weight.requires_grad_(True)
    rows, batch = first_batch()
    forward.attention.set_rows(rows)
    loss = diffusion_loss(forward.noised_logits(weights, batch), batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert abs(float(loss.detach()) / torch.log(torch.tensor(64.0)) - 1) < 0.5  # a uniform guess
    for name, weight in weights.items():
        assert weight.grad is not None, name
        assert float(weight.grad.abs().max()) > 0, name


def test_all_layers_share_one_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_function = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **options: compile_function(f, backend="aot_eager", **options)
    )
    torch._dynamo.reset()
    counters.clear()
    execution = Execution(attention="sdpa", is_compiled=True, dtype="float32")
    forward = Forward(RECIPE, SPEC, execution, CPU)
    assert check_against_engine(RECIPE, documents(), forward) < 1e-5
    assert counters["stats"]["unique_graphs"] == 2
    rows, batch = first_batch()
    forward.attention.set_rows(rows)
    weights = check_weights(SPEC, seed=0, device=CPU)
    forward.noised_logits(weights, batch)
    assert counters["stats"]["unique_graphs"] <= 4  # once more with gradients, then no more


def test_initial_weights_follow_the_recipe() -> None:
    spec = FOCUS_TINY.model_spec(mask_token_id=MASK, eos_token_id=EOS)
    assert 6e6 < spec.num_params < 11e6
    assert spec.weight_bytes < 24e6
    assert spec.num_layers >= 8
    assert spec.max_position_embeddings >= 1024
    weights = initial_weights(SPEC, seed=0, device=CPU)
    assert float(weights["model.layers.0.mlp.gate_proj.weight"].std()) == pytest.approx(0.02, 0.1)
    shrunk = float(weights["model.layers.0.mlp.down_proj.weight"].std())
    assert shrunk == pytest.approx(0.02 / 6**0.5, 0.1)
    again = initial_weights(SPEC, seed=0, device=CPU)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
