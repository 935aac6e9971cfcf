"""LMDeploy's PyTorch engine through its public pipeline, if it is installed here.

Knows that interface only (pipeline, PytorchEngineConfig, GenerationConfig, stream_infer). An option
that the installed version does not have is refused by name; nothing is left out silently.
"""

import importlib
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from focus_bench.backends.backend import BYTE_TOKENIZER, Progress, TextTokenizer
from focus_bench.backends.records import run_record
from focus_bench.backends.reply import Reply, ReplyBuilder, RequestFailed, Served
from focus_bench.core.config import BackendConfig, PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import checkpoint_folder
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload

_WARM_UP_PROMPT = "Say in a few words what a benchmark is for."
_ENGINE_CONFIG = "PytorchEngineConfig"


class _Response(Protocol):
    """One piece of a reply: `text` is new, the counts are those of the reply so far."""

    text: str
    generate_token_len: int
    input_token_len: int
    finish_reason: str | None
    index: int


class _Pipeline(Protocol):
    """The part of LMDeploy's pipeline that is used."""

    def stream_infer(
        self, prompts: list[str], *, gen_config: object, do_preprocess: bool
    ) -> Iterable[_Response]: ...


@dataclass(kw_only=True)
class LMDeployBackend:
    """A pipeline, loaded at the first use of a configuration and kept while points share it."""

    tokenizer: TextTokenizer
    hardware: str
    _module: Any = field(repr=False)
    _pipeline: _Pipeline | None = field(default=None, repr=False)
    _loaded: tuple[object, ...] = ()

    @classmethod
    def installed(cls, tokenizer: TextTokenizer, *, device: str) -> "LMDeployBackend":
        """The LMDeploy that is installed. Raises UsageError where there is none."""
        module = _import_lmdeploy()
        hardware = f"outside engine {_name(module)} on {device}"
        return cls(tokenizer=tokenizer, hardware=hardware, _module=module)

    def connect(self) -> None:
        """Nothing: the model is loaded with its first point."""

    def check(self, point: PointConfig) -> None:
        """Raise UsageError for a point that the installed version cannot run, naming why."""
        if point.engine.model in PRESETS:
            raise UsageError("--model", point.engine.model, "a checkpoint folder, with lmdeploy")
        if self.tokenizer.name == BYTE_TOKENIZER:
            raise UsageError("--tokenizer", BYTE_TOKENIZER, "the checkpoint's, with lmdeploy")
        if point.engine.dtype == "float32":
            raise UsageError("--dtype", "float32", "auto, bfloat16 or float16, with lmdeploy")
        workload = point.workload
        if workload.max_concurrency is not None or workload.request_rate != float("inf"):
            flag = "--request-rate" if workload.max_concurrency is None else "--max-concurrency"
            raise UsageError(
                flag,
                workload.max_concurrency or workload.request_rate,
                "all requests at once with --backend lmdeploy; for arrivals start `lmdeploy serve "
                "api_server` and use --backend openai",
            )
        self._engine_options(point)
        self._call_options("GenerationConfig", self._module.GenerationConfig, _sampling(point))

    def warm_up(self, point: PointConfig) -> None:
        """Load the model if need be, and serve a few short prompts."""
        pipeline = self._pipeline_of(point)
        size = min(4, point.scheduler.batch_size)
        options = {**_sampling(point), "max_new_tokens": point.decode.block_length}
        for _ in pipeline.stream_infer(
            [_WARM_UP_PROMPT] * size,
            gen_config=self._module.GenerationConfig(**options),
            do_preprocess=False,
        ):
            pass

    def run(
        self, point: PointConfig, workload: Workload, *, on_progress: Progress | None = None
    ) -> RunRecord:
        """Serve the workload, all requests at once, `batch_size` of them in the batch."""
        pipeline = self._pipeline_of(point)
        prompts = [
            self.tokenizer.decode(request.prompt_ids, skip_special=False)
            for request in workload.requests
        ]
        collected = _Collected.of(len(prompts))
        begin_s = time.perf_counter()
        for piece in pipeline.stream_infer(
            prompts,
            gen_config=self._module.GenerationConfig(**_sampling(point)),
            do_preprocess=False,
        ):
            ended = collected.add(piece, time.perf_counter() - begin_s)
            if ended and on_progress is not None:
                on_progress(collected.num_ended, collected.output_tokens)
        duration_s = time.perf_counter() - begin_s
        return run_record(
            [
                Served(spec=request, arrival_s=0.0, sent_s=None, reply=reply)
                for request, reply in zip(
                    workload.requests, collected.replies(duration_s), strict=True
                )
            ],
            workload=workload,
            tokenizer=self.tokenizer,
            duration_s=duration_s,
            settings={
                "lmdeploy": _version(self._module),
                "engine_options": _shown(self._engine_options(point)),
            },
        )

    def close(self) -> None:
        """Drop the pipeline, and with it the device's memory."""
        pipeline, self._pipeline, self._loaded = self._pipeline, None, ()
        close = getattr(pipeline, "close", None)  # older versions have none
        if close is not None:
            close()

    def _pipeline_of(self, point: PointConfig) -> _Pipeline:
        options = self._engine_options(point)
        wanted = (point.engine.model, *sorted((k, repr(v)) for k, v in options.items()))
        if self._pipeline is None or self._loaded != wanted:
            self.close()  # before the next one: both would not fit
            self._pipeline = self._module.pipeline(
                str(checkpoint_folder(point.engine.model)),
                backend_config=self._module.PytorchEngineConfig(**options),
            )
            self._loaded = wanted
        assert self._pipeline is not None
        return self._pipeline

    def _engine_options(self, point: PointConfig) -> dict[str, object]:
        """Arguments of PytorchEngineConfig for a point; raises UsageError for what it lacks."""
        decode, scheduler, engine = point.decode, point.scheduler, point.engine
        options: dict[str, object] = {
            "dtype": engine.dtype,
            "max_batch_size": scheduler.batch_size,
            "block_size": scheduler.page_size,
            "max_prefill_token_num": scheduler.max_prefill_tokens,
            "dllm_block_length": decode.block_length,
            "dllm_unmasking_strategy": decode.unmasking_strategy,
            "dllm_confidence_threshold": decode.threshold,
        }
        if decode.steps is not None:
            options["dllm_denoising_steps"] = decode.steps
        if scheduler.num_pages is not None:
            options["num_gpu_blocks"] = scheduler.num_pages
        if engine.cuda_graphs == "off":
            options["eager_mode"] = True
        own = _parsed(point.backend)
        twice = next((name for name in own if name in options), None)
        if twice is not None:
            raise UsageError("--engine-option", twice, "options that no other flag sets")
        config = self._module.PytorchEngineConfig
        self._call_options(_ENGINE_CONFIG, config, options | own)
        if decode.policy != "baseline" and not own:
            raise UsageError(
                "--policy",
                decode.policy,
                "baseline; another one where --engine-option NAME=VALUE turns it on: "
                f"{_name(self._module)} has {', '.join(_parameters(config))}",
            )
        return options | own

    def _call_options(
        self, what: str, target: Callable[..., object], options: Mapping[str, object]
    ) -> None:
        known = _parameters(target)
        for name, value in options.items():
            if name not in known:
                raise UsageError(
                    f"{what} {name}",
                    value,
                    f"options of {_name(self._module)}, which has no {name}: {', '.join(known)}",
                )


@dataclass(kw_only=True)
class _Collected:
    """The replies of one call while their pieces come, each piece naming its prompt."""

    builders: list[ReplyBuilder]
    ends: dict[int, tuple[float, str]] = field(default_factory=dict)  # when, and which error
    output_tokens: int = 0

    @classmethod
    def of(cls, count: int) -> "_Collected":
        return cls(builders=[ReplyBuilder() for _ in range(count)])

    @property
    def num_ended(self) -> int:
        return len(self.ends)

    def add(self, piece: _Response, now_s: float) -> bool:
        """Take in a piece; whether its reply ended with it. Pieces behind an end are empty."""
        if piece.index in self.ends:
            return False
        builder = self.builders[piece.index]
        builder.set_counts(
            prompt_tokens=piece.input_token_len, output_tokens=piece.generate_token_len
        )
        if piece.finish_reason is None:
            builder.add_text(piece.text, now_s)
            return False
        error = ""
        try:
            builder.add_end(piece.finish_reason, now_s)
            builder.add_text(piece.text, now_s)  # with another end the text is the error's
        except RequestFailed as failed:
            error = str(failed)
        self.ends[piece.index] = (now_s, error)
        self.output_tokens += piece.generate_token_len
        return True

    def replies(self, duration_s: float) -> list[Reply]:
        """All replies, in order of the prompts; one that never ended says so."""
        replies = []
        for i, builder in enumerate(self.builders):
            ended_s, error = self.ends.get(i, (duration_s, ""))
            replies.append(builder.finish(ended_s, error=error))
        return replies


def _import_lmdeploy() -> Any:
    try:
        return importlib.import_module("lmdeploy")
    except ImportError as error:
        raise UsageError(
            "--backend", "lmdeploy", f"engine or openai: lmdeploy cannot be imported ({error})"
        ) from None


def _version(module: Any) -> str:
    return str(getattr(module, "__version__", "of unknown version"))


def _name(module: Any) -> str:
    return f"lmdeploy {_version(module)}"


def _parameters(target: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(target).parameters)


def _sampling(point: PointConfig) -> dict[str, object]:
    """Arguments of GenerationConfig for a point."""
    sampling = point.sampling
    options: dict[str, object] = {
        "max_new_tokens": point.workload.max_new_tokens,
        "do_sample": sampling.temperature > 0.0,
        "ignore_eos": point.workload.ignore_eos,
    }
    if sampling.temperature > 0.0:
        options |= {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "random_seed": point.seed,
        }
    return options


def _parsed(config: BackendConfig) -> dict[str, object]:
    """NAME=VALUE options with their values: true, false, none, a number, or text."""
    options: dict[str, object] = {}
    for item in config.options:
        name, equals, text = item.partition("=")
        if not equals or not name.isidentifier() or name in options:
            raise UsageError("--engine-option", item, "NAME=VALUE, each name once")
        options[name] = _value(text)
    return options


def _value(text: str) -> object:
    words: dict[str, object] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _shown(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
