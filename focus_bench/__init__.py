"""focus-bench: a block-diffusion decoding engine and a calibrated simulator of it, side by side.

The names below load on first use, so that importing the package needs neither torch nor SimPy.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Engine", "__version__", "compare", "simulate"]

if TYPE_CHECKING:
    from focus_bench.api import Engine, compare, simulate


def __getattr__(name: str) -> Any:
    if name in {"Engine", "compare", "simulate"}:
        from focus_bench import api

        return getattr(api, name)
    raise AttributeError(f"module 'focus_bench' has no attribute {name!r}")
