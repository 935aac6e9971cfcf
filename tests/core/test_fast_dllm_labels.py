"""What outputs say where Fast-dLLM v2 is not run as published, and on which models it may run."""

import pytest

from focus_bench.core.config import (
    DecodeConfig,
    EngineConfig,
    PointConfig,
    SchedulerConfig,
)
from focus_bench.core.labels import point_labels
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.workload import Provenance

DATA = Provenance(dataset="test", origin="file", tokenizer="t")
OWN_ENGINE = "our model of Fast-dLLM v2's own engine (static batches, no paging)"


def labels(model: str, policy: str = "fast-dllm-v2", kind: str = "continuous") -> list[str]:
    point = PointConfig(
        decode=DecodeConfig(policy=policy),
        scheduler=SchedulerConfig(kind=kind),
        engine=EngineConfig(model=model),
    )
    said = point_labels(point, DATA, dummy_weights=False)
    return [label for label in said if "unshifted" in label or "Fast-dLLM" in label]


@pytest.mark.parametrize("model", ["sdar-8b", "dummy-tiny", "focus-tiny"])
def test_the_mechanism_on_sdar_is_labelled(model: str) -> None:
    assert labels(model) == ["unshifted (SDAR)"]
    assert labels(model, "focus") == []


def test_static_batches_are_our_model_of_its_own_engine() -> None:
    assert labels("fast-dllm-v2-7b", kind="static") == [OWN_ENGINE]
    assert labels("sdar-8b", kind="static") == ["unshifted (SDAR)", OWN_ENGINE]
    assert labels("sdar-8b", "baseline", kind="static") == []


def test_on_its_own_family_nothing_is_said() -> None:
    assert labels("fast-dllm-v2-7b") == []


def test_a_model_that_cannot_be_read_is_known_to_the_caller_only() -> None:
    assert labels("/no/such/folder") == []
    point = PointConfig(
        decode=DecodeConfig(policy="fast-dllm-v2"), engine=EngineConfig(model="/no/such/folder")
    )
    said = point_labels(point, DATA, dummy_weights=False, spec=PRESETS["sdar-8b"])
    assert "unshifted (SDAR)" in said
