"""What in a result stands for something else (dummy weights, synthetic acceptance, ...), in words.

The one place for these words: run records, tables, CSV rows and plots all take them from here.
"""

from collections.abc import Sequence
from functools import lru_cache

from focus_bench.core.config import EngineConfig, PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import resolve_model
from focus_bench.core.model_spec import BUNDLED_MODELS, PRESETS, ModelSpec
from focus_bench.core.workload import BUNDLED_TASKS, CALLER, Provenance

_FAMILY_TITLES = {"sdar": "SDAR", "llada2": "LLaDA2.0"}


def point_labels(
    point: PointConfig,
    provenance: Provenance,
    *,
    dummy_weights: bool,
    spec: ModelSpec | None = None,
) -> tuple[str, ...]:
    """Labels of a point; `dummy_weights`: its tokens came from random weights. `spec`: its model's,
    where the caller has it.
    """
    labels = []
    if dummy_weights:
        labels.append("dummy weights")
    elif point.engine.model in BUNDLED_MODELS and point.engine.load_format != "dummy":
        labels += _domain_labels(point.engine.model, provenance)
    preset = PRESETS.get(point.engine.model)
    in_bytes = provenance.tokenizer == "byte" and not provenance.synthetic
    if in_bytes and preset is not None and preset.tokenizer_size is None:
        labels.append(f"byte tokenizer (lengths are bytes: {preset.name} has no tokenizer here)")
    if point.decode.policy == "fast-dllm-v2":
        labels += _fast_dllm_labels(point, spec or _spec_if_known(point.engine))
    if point.acceptance.kind == "synthetic":
        labels.append(f"synthetic acceptance ({point.acceptance.label})")
    if point.acceptance.kind == "replay":
        labels.append("replayed acceptance")  # the file stands in column acceptance
    if point.importance.kind == "synthetic":
        labels.append(f"synthetic importance ({point.importance.label})")
    if provenance.synthetic:
        labels.append(f"synthetic data ({provenance.dataset})")
    return tuple(labels)


def outside_labels(point: PointConfig, provenance: Provenance) -> tuple[str, ...]:
    """Labels of what an outside engine gave: the model and its decoding are its own."""
    if point.backend.kind == "openai":
        how = "openai endpoint; model, policy and decoding settings as the caller states them"
    elif point.decode.policy == "baseline":
        how = "lmdeploy"
    else:
        how = f"lmdeploy; policy as the caller states it, by {', '.join(point.backend.options)}"
    labels = [f"outside engine ({how})"]
    if provenance.synthetic:
        labels.append(f"synthetic data ({provenance.dataset})")
    return tuple(labels)


def throttling_labels(reasons: Sequence[str]) -> tuple[str, ...]:
    """The label of a measurement on a GPU that was slower than its settings allow, if it was."""
    return (f"GPU throttled ({', '.join(reasons)})",) if reasons else ()


def _fast_dllm_labels(point: PointConfig, spec: ModelSpec | None) -> list[str]:
    """Where Fast-dLLM v2 is not run as published: on models of other families its intra-block
    mechanism alone (paper, Fig. 19), and in static batches what its own engine does (Fig. 18).
    """
    labels = []
    if spec is not None and not spec.shifted_logits:
        labels.append(f"unshifted ({_FAMILY_TITLES.get(spec.family, spec.family)})")
    if point.scheduler.kind == "static":
        labels.append("our model of Fast-dLLM v2's own engine (static batches, no paging)")
    return labels


@lru_cache(maxsize=64)
def _spec_if_known(engine: EngineConfig) -> ModelSpec | None:
    """The model's spec; None where its folder cannot be read (results from elsewhere carry the
    labels of the run as notes).
    """
    try:
        return resolve_model(engine)
    except UsageError:
        return None


def _domain_labels(model: str, provenance: Provenance) -> list[str]:
    """What the data are to a bundled model, which was trained on the bundled tasks only."""
    if provenance.origin == BUNDLED_TASKS:
        return []
    if provenance.origin == CALLER:
        return [f"{model} knows only the kinds of the bundled tasks"]
    return [f"out of domain ({model} knows only the bundled tasks, not {provenance.dataset})"]
