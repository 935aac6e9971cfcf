"""LMDeploy's pipeline behind this project's records, by its interface: it is not installed here."""

import dataclasses
import sys

import pytest
from fake_lmdeploy import (
    FakeModule,
    ForkEngineConfig,
    GenerationConfig,
    OldEngineConfig,
    options_of,
)

from focus_bench.backends.lmdeploy import LMDeployBackend
from focus_bench.core.config import (
    BackendConfig,
    DecodeConfig,
    EngineConfig,
    PointConfig,
    SamplingConfig,
    SchedulerConfig,
    WorkloadConfig,
)
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import checkpoint_folder
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.workloads.hf_tokenizer import HfTokenizer
from focus_bench.workloads.tokenizers import ByteTokenizer

BASE = PointConfig(
    engine=EngineConfig(model="focus-tiny"),
    backend=BackendConfig(kind="lmdeploy"),
    decode=DecodeConfig(policy="baseline", block_length=16, threshold=0.8),
    scheduler=SchedulerConfig(batch_size=8),
    workload=WorkloadConfig(max_new_tokens=20),
    seed=7,
)


def focus_point(*options: str) -> PointConfig:
    return dataclasses.replace(
        BASE,
        decode=dataclasses.replace(BASE.decode, policy="focus"),
        backend=BackendConfig(kind="lmdeploy", options=options),
    )


def tokenizer() -> HfTokenizer:
    return HfTokenizer(checkpoint_folder("focus-tiny"), name="focus-tiny")


def installed(monkeypatch: pytest.MonkeyPatch, module: FakeModule) -> LMDeployBackend:
    monkeypatch.setitem(sys.modules, "lmdeploy", module)
    return LMDeployBackend.installed(tokenizer(), device="NVIDIA H200")


def workload(*texts: str) -> Workload:
    return Workload(
        requests=tuple(
            RequestSpec(
                request_id=i, prompt_ids=tokenizer().chat_prompt(text)[0], max_new_tokens=20
            )
            for i, text in enumerate(texts)
        ),
        provenance=Provenance(dataset="prompts", origin="caller", tokenizer="focus-tiny"),
    )


def test_a_point_becomes_options_of_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    backend = installed(monkeypatch, module)
    assert backend.hardware == "outside engine lmdeploy 0.11.0 on NVIDIA H200"
    backend.check(BASE)
    run = backend.run(BASE, workload("How many?", "Why?"))
    (pipeline,) = module.pipelines
    assert pipeline.model_path == str(checkpoint_folder("focus-tiny"))
    assert options_of(pipeline.backend_config) == {
        "max_batch_size": 8,
        "dllm_block_length": 16,
        "dllm_confidence_threshold": 0.8,
    }
    ((prompts, gen_config, do_preprocess),) = pipeline.calls
    assert do_preprocess is False  # the chat template is in the text already
    assert [tokenizer().encode(p).tolist() for p in prompts] == [
        r.prompt_ids.tolist() for r in workload("How many?", "Why?").requests
    ]
    assert gen_config == GenerationConfig(max_new_tokens=20)
    first, second = run.requests
    assert (first.finish_reason, first.output_tokens) == ("stop", 9)
    assert (second.finish_reason, second.output_tokens) == ("length", 10)
    assert first.prompt_tokens == len(prompts[0])
    assert first.admitted_s is None  # when the engine took it in is not known
    assert first.decode_steps is None
    assert first.first_token_s is not None
    assert first.first_token_s <= first.finished_s <= run.duration_s
    assert len(run.group_gaps_s) == 2
    assert run.settings["lmdeploy"] == "0.11.0"
    assert "dllm_block_length=16" in run.settings["engine_options"]


def test_what_is_not_a_default_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    backend = installed(monkeypatch, module)
    point = dataclasses.replace(
        BASE,
        engine=dataclasses.replace(BASE.engine, dtype="bfloat16", cuda_graphs="off"),
        decode=dataclasses.replace(
            BASE.decode, unmasking_strategy="low_confidence_static", steps=4
        ),
        scheduler=SchedulerConfig(
            batch_size=8, page_size=32, num_pages=100, max_prefill_tokens=512
        ),
        sampling=SamplingConfig(temperature=0.5, top_k=3, top_p=0.9),
        workload=WorkloadConfig(max_new_tokens=20, ignore_eos=True),
        backend=BackendConfig(kind="lmdeploy", options=("tp=2", "cache_max_entry_count=0.5")),
    )
    backend.check(point)
    backend.run(point, workload("x"))
    (pipeline,) = module.pipelines
    assert options_of(pipeline.backend_config) == {
        "dtype": "bfloat16",
        "tp": 2,
        "max_batch_size": 8,
        "cache_max_entry_count": 0.5,
        "block_size": 32,
        "num_gpu_blocks": 100,
        "max_prefill_token_num": 512,
        "eager_mode": True,
        "dllm_block_length": 16,
        "dllm_unmasking_strategy": "low_confidence_static",
        "dllm_denoising_steps": 4,
        "dllm_confidence_threshold": 0.8,
    }
    assert pipeline.calls[0][1] == GenerationConfig(
        max_new_tokens=20,
        do_sample=True,
        top_p=0.9,
        top_k=3,
        temperature=0.5,
        ignore_eos=True,
        random_seed=7,
    )


def test_focus_needs_the_forks_options_and_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule(ForkEngineConfig, version="0.10.2+focus")
    backend = installed(monkeypatch, module)
    point = focus_point("enable_focus=true", "focus_alpha=1.8")
    backend.check(point)
    backend.warm_up(point)
    (pipeline,) = module.pipelines
    options = options_of(pipeline.backend_config)
    assert (options["enable_focus"], options["focus_alpha"]) == (True, 1.8)
    with pytest.raises(UsageError, match=r"--policy: 'focus' .* enable_focus, focus_alpha"):
        backend.check(focus_point())


@pytest.mark.parametrize(
    ("config", "point", "words"),
    [
        (None, focus_point("enable_focus=true"), "PytorchEngineConfig enable_focus: True .* no"),
        (OldEngineConfig, BASE, "PytorchEngineConfig dllm_block_length: 16 .* has no dllm_block"),
        (None, focus_point("dtype=auto"), "--engine-option: 'dtype' .* no other flag sets"),
        (None, focus_point("x"), "--engine-option: 'x' .* NAME=VALUE"),
        (None, focus_point("tp=1", "tp=2"), "--engine-option: 'tp=2' .* each name once"),
        (
            None,
            dataclasses.replace(BASE, engine=EngineConfig(model="sdar-8b")),
            "--model: 'sdar-8b' .* checkpoint folder",
        ),
        (
            None,
            dataclasses.replace(BASE, engine=EngineConfig(model="focus-tiny", dtype="float32")),
            "--dtype: 'float32'",
        ),
        (
            None,
            dataclasses.replace(BASE, workload=WorkloadConfig(request_rate=2.0)),
            "--request-rate: 2.0 .* `lmdeploy serve api_server",
        ),
        (
            None,
            dataclasses.replace(BASE, workload=WorkloadConfig(max_concurrency=2)),
            "--max-concurrency: 2 .* `lmdeploy serve api_server",
        ),
    ],
)
def test_what_the_installed_version_cannot_do_is_refused_by_name(
    config: type | None, point: PointConfig, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = installed(monkeypatch, FakeModule() if config is None else FakeModule(config))
    with pytest.raises(UsageError, match=words):
        backend.check(point)


def test_a_sampling_option_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    module.GenerationConfig = dataclasses.make_dataclass(  # type: ignore[misc]
        "GenerationConfig", [("max_new_tokens", int, 1), ("do_sample", bool, False)]
    )
    backend = installed(monkeypatch, module)
    with pytest.raises(UsageError, match=r"GenerationConfig ignore_eos: False .* no ignore_eos"):
        backend.check(BASE)


def test_bytes_are_no_checkpoints_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdeploy", FakeModule())
    backend = LMDeployBackend.installed(ByteTokenizer(), device="x")
    with pytest.raises(UsageError, match="--tokenizer: 'byte'"):
        backend.check(BASE)


def test_failures_are_named_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    backend = installed(monkeypatch, module)
    backend.warm_up(BASE)
    (pipeline,) = module.pipelines
    pipeline.failing, pipeline.silent = frozenset({1}), frozenset({2})
    seen: list[tuple[int, int]] = []
    run = backend.run(
        BASE,
        workload("a", "b", "c", "d"),
        on_progress=lambda n, tokens: seen.append((n, tokens)),
    )
    assert [(r.finish_reason, r.error) for r in run.requests] == [
        ("stop", ""),
        ("error", "finish reason 'error'"),
        ("error", "stream ended without a finish reason"),
        ("length", ""),
    ]
    assert seen == [(1, 9), (2, 17), (3, 29)]
    assert len(run.group_gaps_s) == 2  # of the two that ended well
    assert module.pipelines == [pipeline]  # one model for warm-up and run


def test_another_configuration_closes_the_pipeline_before_it_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = FakeModule()
    backend = installed(monkeypatch, module)
    backend.run(BASE, workload("a"))
    backend.run(BASE, workload("a"))
    larger = dataclasses.replace(BASE, scheduler=SchedulerConfig(batch_size=16))
    backend.run(larger, workload("a"))
    first, second = module.pipelines
    assert (first.is_closed, second.is_closed) == (True, False)
    backend.close()
    assert second.is_closed


def test_without_lmdeploy_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdeploy", None)
    with pytest.raises(UsageError, match="lmdeploy cannot be imported"):
        LMDeployBackend.installed(tokenizer(), device="x")
