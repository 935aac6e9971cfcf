"""What a run uses where the user says nothing, and how --acceptance and --importance are written.

Knows the defaults' reasons (dummy weights have no meaningful confidences), not how points run.
"""

import dataclasses

from focus_bench.core.config import AcceptanceConfig, EngineConfig, ImportanceConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import (
    checkpoint_folder,
    has_dummy_weights,
    read_tokenizer_facts,
)
from focus_bench.core.model_spec import BUNDLED_MODELS, DEFAULT_MODEL, PRESETS, ModelSpec
from focus_bench.decoding.acceptance import (
    DEFAULT_IMPORTANCE_NOISE,
    DEFAULT_IMPORTANCE_TAU,
    PRESET_MEANS,
)
from focus_bench.decoding.dynamics import dynamics_of_model

DEFAULT_BLOCK_LENGTH = 32
DEFAULT_POLICIES = ("baseline", "delayed-cache-neighbor", "focus")
DEFAULT_BATCH_SIZES = (8, 32)
FALLBACK_PRESET = "sharegpt"

ACCEPTANCE_FORMS = (
    "confidence, synthetic:MEAN[,scatter=S], synthetic:PRESET[,scatter=S], "
    f"synthetic:{DEFAULT_MODEL}[,scatter=S] or replay:FILE"
)
IMPORTANCE_FORMS = "model, synthetic or synthetic:tau=T,noise=N"


def acceptance_for(
    text: str | None, *, engine: EngineConfig, family: str, dataset: str, simulated: bool = False
) -> AcceptanceConfig:
    """The acceptance of one point: what `text` (--acceptance) says, else the default.

    Default: by confidence with trained weights, or in a simulation, which has no confidences, the
    dynamics fitted on a bundled model's traces; with dummy weights synthetic, with the mean that
    `family` ("sdar") has for `dataset`, or ShareGPT's where it has none; SDAR's for a family that
    has none at all, and named so.
    """
    if text is not None:
        return parse_acceptance(text, family=family)
    if not has_dummy_weights(engine):
        if simulated and engine.model in BUNDLED_MODELS:
            return parse_acceptance(f"synthetic:{engine.model}")
        return AcceptanceConfig()
    presets = PRESET_MEANS.get(family, PRESET_MEANS["sdar"])
    preset = dataset if dataset in presets else FALLBACK_PRESET
    name = preset if family in PRESET_MEANS else f"sdar/{preset}"
    return AcceptanceConfig(kind="synthetic", mean=presets[preset], preset=name)


def importance_for(
    text: str | None,
    *,
    engine: EngineConfig,
    acceptance: AcceptanceConfig | None = None,
    simulated: bool = False,
) -> ImportanceConfig:
    """The importance of one point: what `text` (--importance) says, else the default.

    Default: the model's with trained weights; synthetic with dummy weights, and beside synthetic
    `acceptance` in a simulation, which has no model; beside fitted `acceptance` synthetic too, with
    the noise fitted on the same model's traces.
    """
    if text is not None:
        return parse_importance(text)
    if acceptance is not None and acceptance.dynamics:
        noise = dynamics_of_model(acceptance.dynamics).importance_noise
        if noise is not None:
            tau = DEFAULT_IMPORTANCE_TAU
            return ImportanceConfig(kind="synthetic", tau=tau, noise=noise, fitted=True)
        return parse_importance("synthetic")
    drawn = simulated and acceptance is not None and acceptance.kind == "synthetic"
    return parse_importance("synthetic" if drawn or has_dummy_weights(engine) else "model")


def parse_acceptance(text: str, *, family: str = "sdar") -> AcceptanceConfig:
    """Read --acceptance. Presets are those of `family`, or FAMILY/NAME. Raises UsageError."""
    flag = "--acceptance"
    kind, _, rest = text.partition(":")
    if kind == "confidence" and not rest:
        return AcceptanceConfig()
    if kind == "replay" and rest:
        return AcceptanceConfig(kind="replay", path=rest)
    if kind != "synthetic" or not rest:
        raise UsageError(flag, text, ACCEPTANCE_FORMS)
    name, *options = rest.split(",")
    values = _numbers(flag, text, options, ("scatter",), ACCEPTANCE_FORMS)
    scatter = values.get("scatter", 0.0)
    if name in BUNDLED_MODELS:
        dynamics = dynamics_of_model(name)
        scatter = values.get("scatter", dynamics.scatter)
        return AcceptanceConfig(kind="synthetic", mean=dynamics.mean, scatter=scatter, preset=name)
    mean = _number(name)
    if mean is not None:
        return AcceptanceConfig(kind="synthetic", mean=mean, scatter=scatter)
    presets = PRESET_MEANS.get(family, {}) | {
        f"{owner}/{dataset}": value
        for owner, datasets in PRESET_MEANS.items()
        for dataset, value in datasets.items()
    }
    if name not in presets:
        raise UsageError(
            flag, text, f"{ACCEPTANCE_FORMS}, where PRESET is one of {', '.join(presets)}"
        )
    return AcceptanceConfig(kind="synthetic", mean=presets[name], scatter=scatter, preset=name)


def parse_importance(text: str) -> ImportanceConfig:
    """Read --importance; parameters left out take the fitted defaults. Raises UsageError."""
    flag = "--importance"
    kind, _, rest = text.partition(":")
    if kind == "model" and not rest:
        return ImportanceConfig()
    if kind != "synthetic" or text.endswith(":"):
        raise UsageError(flag, text, IMPORTANCE_FORMS)
    options = rest.split(",") if rest else []
    values = _numbers(flag, text, options, ("tau", "noise"), IMPORTANCE_FORMS)
    return ImportanceConfig(
        kind="synthetic",
        tau=values.get("tau", DEFAULT_IMPORTANCE_TAU),
        noise=values.get("noise", DEFAULT_IMPORTANCE_NOISE),
        fitted=not values,
    )


def default_block_length(spec: ModelSpec) -> int:
    """The block length that the checkpoint was trained with, else the paper's 32."""
    return DEFAULT_BLOCK_LENGTH if spec.block_length is None else spec.block_length


def resolved_engine(config: EngineConfig) -> EngineConfig:
    """The configuration with its load format as it will be: presets have dummy weights only."""
    if config.model in PRESETS:
        return dataclasses.replace(config, load_format="dummy")
    return config


def default_tokenizer(engine: EngineConfig) -> str:
    """What --tokenizer is where it is not given: the checkpoint's folder, else bytes.

    Presets have no files, and a folder for dummy weights need not have any. Byte ids lie in every
    vocabulary, and without trained weights only lengths matter.
    """
    if engine.model in PRESETS:
        return "byte"
    if (
        has_dummy_weights(engine)
        and read_tokenizer_facts(checkpoint_folder(engine.model)).size is None
    ):
        return "byte"
    return engine.model


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _numbers(
    flag: str, text: str, options: list[str], names: tuple[str, ...], forms: str
) -> dict[str, float]:
    """Read NAME=NUMBER options; raises UsageError for any other name or value."""
    values: dict[str, float] = {}
    for option in options:
        name, _, number = option.partition("=")
        value = _number(number)
        if name not in names or value is None or name in values:
            raise UsageError(flag, text, forms)
        values[name] = value
    return values
