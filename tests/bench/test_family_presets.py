"""Acceptance of dummy weights is that of the model's family, in every sweep."""

import dataclasses

import pytest

from focus_bench.bench.sweep import Axes, expand
from focus_bench.core.config import EngineConfig, PointConfig


@pytest.mark.parametrize(
    ("model", "dataset", "mean"),
    [
        ("llada2-mini", "sharegpt", 1.740),
        ("llada2-flash", "math", 3.692),
        ("llada2-mini", "gsm8k", 1.740),  # no preset of its own: ShareGPT's
        ("sdar-30b-a3b", "wildchat", 2.385),
    ],
)
def test_acceptance_presets_are_those_of_the_family(model: str, dataset: str, mean: float) -> None:
    base = PointConfig(engine=EngineConfig(model=model))
    axes = Axes(
        models=(model,),
        datasets=(dataset,),
        batch_sizes=(8,),
        alphas=(1.5,),
        thresholds=(0.9,),
        strategies=("low_confidence_dynamic",),
        policies=("baseline", "focus"),
    )
    for point in expand(axes, base):
        assert point.acceptance.mean == mean
        assert point.acceptance.preset in {dataset, "sharegpt"}
    for named in expand(dataclasses.replace(axes, acceptance="synthetic:math"), base):
        assert named.acceptance.mean == (3.692 if model.startswith("llada2") else 5.363)
