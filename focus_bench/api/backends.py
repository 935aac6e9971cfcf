"""Opens the outside engine of a point."""

from typing import TYPE_CHECKING

from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.workloads.tokenizers import Tokenizer

if TYPE_CHECKING:
    from focus_bench.backends.backend import Backend


def open_backend(point: PointConfig, tokenizer: Tokenizer, *, device: str) -> "Backend":
    """The engine that `point.backend` names; nothing is loaded and no endpoint asked yet.

    `tokenizer` makes and counts tokens; `device` names this machine's, for an engine that runs
    here. Raises UsageError for a package that is not installed.
    """
    if point.backend.kind == "lmdeploy":
        from focus_bench.backends.lmdeploy import LMDeployBackend

        return LMDeployBackend.installed(tokenizer, device=device)
    try:
        from focus_bench.backends.openai import OpenAIBackend
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise UsageError(
            "--backend",
            point.backend.kind,
            "engine; after pip install 'focus-bench[backends]' also openai",
        ) from None
    return OpenAIBackend(config=point.backend, tokenizer=tokenizer, model_name=point.engine.model)
