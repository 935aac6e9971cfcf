"""The flags of outside engines, and what the other flags of run mean beside them.

A flag that the chosen engine cannot follow is refused by name. Knows no engine.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Annotated as A
from urllib.parse import urlsplit

from focus_bench.cli.flags import OUTSIDE, flag, real
from focus_bench.core.config import BACKENDS, ENGINE, BackendConfig
from focus_bench.core.errors import UsageError

if TYPE_CHECKING:
    from focus_bench.cli.sweep_options import RunFlags

# What can be said of a server that somebody else started: the policies that such servers run.
_STATED_POLICIES = ("baseline", "delayed-cache", "delayed-cache-neighbor", "focus")

_FLAGS_OF = {
    "openai": ("base_url", "endpoint", "served_model_name", "prompt_format", "request_timeout"),
    "lmdeploy": ("engine_option",),
}
# Flags of this project's engine that the outside ones do not follow.
_OWN_FLAGS = (
    *("load_format", "device", "threads", "mask_token_id", "gpu_memory_utilization"),
    *("scheduler", "steps_per_round", "retain", "select", "focus_min_batch", "decode_trace"),
)
_SET_BY_ITS_SERVER = (
    *("dtype", "cuda_graphs", "page_size", "num_pages", "max_prefill_tokens", "steps"),
)
_NOT_FOLLOWED = {"openai": (*_OWN_FLAGS, *_SET_BY_ITS_SERVER), "lmdeploy": _OWN_FLAGS}
_STATED_ONCE = ("policy", "block_length", "alpha", "threshold", "unmasking_strategy")


@dataclass(frozen=True, kw_only=True)
class BackendFlags:
    """Which engine is measured."""

    backend: A[
        str,
        flag(
            OUTSIDE,
            f"{BACKENDS[0]} (this project's), {BACKENDS[1]} (any OpenAI-compatible endpoint) or "
            f"{BACKENDS[2]} (its pipeline, where installed).",
        ),
    ] = ENGINE
    base_url: A[
        str,
        flag(
            OUTSIDE,
            "URL of the endpoint, such as http://localhost:8000/v1. A key comes from "
            "FOCUS_BENCH_API_KEY or OPENAI_API_KEY.",
            shown="none",
        ),
    ] = ""
    endpoint: A[str, flag(OUTSIDE, "completions, or chat (the server's own chat template).")] = (
        "completions"
    )
    served_model_name: A[
        str, flag(OUTSIDE, "The endpoint's name of the model.", shown="what it lists")
    ] = ""
    prompt_format: A[
        str, flag(OUTSIDE, "tokens, text, or auto: token ids if the endpoint takes them.")
    ] = "auto"
    request_timeout: A[float, real(OUTSIDE, "Seconds for a whole reply.")] = 600.0
    engine_option: A[
        list[str] | None,
        flag(
            OUTSIDE,
            "NAME=VALUE for lmdeploy's PytorchEngineConfig; may be repeated.",
            shown="none",
        ),
    ] = None


def backend_of(flags: BackendFlags) -> BackendConfig:
    """What the flags say about the engine. Raises UsageError."""
    config = BackendConfig(
        kind=flags.backend,
        base_url=_base_url(flags.base_url) if flags.backend == "openai" else "",
        api=flags.endpoint,
        served_model=flags.served_model_name,
        prompt_format=flags.prompt_format,
        request_timeout_s=flags.request_timeout,
        options=tuple(flags.engine_option or ()),
    )
    for kind, names in _FLAGS_OF.items():
        if kind != flags.backend:
            for name in _changed(flags, names):
                raise UsageError(_spelled(name), getattr(flags, name), f"only --backend {kind}")
    return config


def outside_flags(flags: "RunFlags") -> "RunFlags":
    """The flags with the defaults of an outside engine.

    One policy, the baseline; decisions are the model's. Raises UsageError for what the engine does
    not follow, naming the flag.
    """
    kind = flags.backend
    for name in _changed(flags, _NOT_FOLLOWED[kind]):
        raise UsageError(_spelled(name), getattr(flags, name), f"its default with --backend {kind}")
    policy = "baseline" if flags.policy is None else flags.policy
    for name in policy.split(","):
        if name.strip() not in _STATED_POLICIES:
            allowed = f"{', '.join(_STATED_POLICIES)} (with --backend {kind})"
            raise UsageError("--policy", name.strip(), allowed)
    if "," in flags.model:
        raise UsageError("--model", flags.model, f"one with --backend {kind}")
    flags = dataclasses.replace(flags, policy=policy)
    if kind == "openai":
        for name in _STATED_ONCE:
            value = getattr(flags, name)
            if value is not None and "," in value:
                raise UsageError(
                    _spelled(name), value, "one value with --backend openai: its server has one"
                )
    elif flags.engine_option and "," in policy:
        raise UsageError(
            "--policy",
            policy,
            "one policy with --engine-option; run again with --resume for the next",
        )
    if flags.profile is None:
        for name in _changed(flags, ("acceptance", "importance")):
            raise UsageError(
                _spelled(name),
                getattr(flags, name),
                f"nothing with --backend {kind}, but for predictions by --profile",
            )
        flags = dataclasses.replace(flags, acceptance="confidence", importance="model")
    return flags


def _changed(flags: BackendFlags, names: tuple[str, ...]) -> list[str]:
    """Those of the flags that do not have their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(flags)}
    return [name for name in names if getattr(flags, name) != defaults[name]]


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


def _masked(text: str) -> str:
    """The URL with *** for whatever may be secret: all before its last @, query and fragment."""
    shown = re.sub(r"^([a-zA-Z][\w+.-]*://)?.*@", r"\1***@", text, flags=re.DOTALL)
    return re.sub(r"([?#]).*", r"\1***", shown, flags=re.DOTALL)


def _base_url(text: str) -> str:
    """The URL without a slash at its end, /v1 added where it has no path. Raises UsageError.

    User names, passwords and queries are refused and masked in the error: results would carry
    them.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text repeats parts of the URL, which may be of a password
        raise UsageError(
            "--base-url", _masked(text), "http://HOST:PORT/v1, with PORT a number up to 65535"
        ) from None
    # A password with a slash or a question mark in it ends what is parsed as the server's name.
    if "@" in text or parts.query or parts.fragment:
        raise UsageError(
            "--base-url",
            _masked(text),
            "a URL without user name, password, query and fragment (keys: by environment)",
        )
    if parts.scheme not in ("http", "https") or not host or port == 0:
        allowed = "http://HOST:PORT/v1 or https://HOST/v1"
        raise UsageError("--base-url", _masked(text), allowed)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
