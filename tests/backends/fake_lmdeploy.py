"""A stand-in with the signatures of LMDeploy's public interface, as far as they are used.

Written from its documentation: PytorchEngineConfig and GenerationConfig are dataclasses, pipeline
gives an object whose stream_infer yields a Response for each piece of each prompt.
"""

import dataclasses
import types
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class PytorchEngineConfig:
    dtype: str = "auto"
    tp: int = 1
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    block_size: int = 64
    num_gpu_blocks: int = 0
    max_prefill_token_num: int = 8192
    eager_mode: bool = False
    dllm_block_length: int | None = None
    dllm_unmasking_strategy: str = "low_confidence_dynamic"
    dllm_denoising_steps: int | None = None
    dllm_confidence_threshold: float = 0.85


@dataclass
class ForkEngineConfig(PytorchEngineConfig):
    """With options of a fork; their names are this test's."""

    enable_focus: bool = False
    focus_alpha: float = 1.5


@dataclass
class OldEngineConfig:
    """Before diffusion models."""

    dtype: str = "auto"
    max_batch_size: int | None = None
    block_size: int = 64
    max_prefill_token_num: int = 8192


@dataclass
class GenerationConfig:
    n: int = 1
    max_new_tokens: int = 512
    do_sample: bool = False
    top_p: float = 1.0
    top_k: int = 50
    temperature: float = 0.8
    ignore_eos: bool = False
    random_seed: int | None = None


@dataclass
class Response:
    text: str
    generate_token_len: int
    input_token_len: int
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: object = None
    index: int = 0


class Pipeline:
    """Two pieces and an end for each prompt, the prompts' pieces by turns; `failing` ends badly."""

    def __init__(self, model_path: str, backend_config: object) -> None:
        self.model_path = model_path
        self.backend_config = backend_config
        self.calls: list[tuple[list[str], object, bool]] = []
        self.failing: frozenset[int] = frozenset()
        self.silent: frozenset[int] = frozenset()
        self.is_closed = False

    def stream_infer(
        self,
        prompts: list[str],
        sessions: object = None,
        gen_config: object = None,
        do_preprocess: bool = True,
        adapter_name: str | None = None,
        stream_response: bool = True,
    ) -> Iterator[Response]:
        self.calls.append((prompts, gen_config, do_preprocess))
        for turn in (1, 2):
            for i, prompt in enumerate(prompts):
                yield Response("ab", 4 * turn, len(prompt), index=i)
        for i, prompt in enumerate(prompts):
            if i in self.failing:
                yield Response("internal error happened", 8, len(prompt), "error", index=i)
            elif i not in self.silent:
                yield Response("", 9 + i, len(prompt), "length" if i else "stop", index=i)

    def close(self) -> None:
        self.is_closed = True


class FakeModule(types.ModuleType):
    """The module `lmdeploy`; `pipelines` are those that were made."""

    def __init__(self, config: type = PytorchEngineConfig, version: str = "0.11.0") -> None:
        super().__init__("lmdeploy")
        self.__version__ = version
        self.PytorchEngineConfig = config
        self.GenerationConfig = GenerationConfig
        self.pipelines: list[Pipeline] = []

    def pipeline(
        self, model_path: str, backend_config: object = None, log_level: str = "WARNING"
    ) -> Pipeline:
        made = Pipeline(model_path, backend_config)
        self.pipelines.append(made)
        return made


def options_of(config: object) -> dict[str, object]:
    """The options of a configuration that are not the defaults."""
    assert dataclasses.is_dataclass(config)
    return {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if getattr(config, f.name) != f.default
    }
