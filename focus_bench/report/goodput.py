"""Service-level objectives as users of vLLM type them: ``--goodput ttft:500 tpot:20``."""

from collections.abc import Sequence
from dataclasses import dataclass

from focus_bench.core.errors import UsageError, check_range

MAX_MS = 1_000_000_000
_ALLOWED = "ttft:MS, tpot:MS or e2el:MS, each at most once"


@dataclass(frozen=True, kw_only=True)
class GoodputThresholds:
    """Upper limits in milliseconds; None sets none. A request is good if it meets all of them.

    A time per output token that is undefined (one output token) meets any limit.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    @classmethod
    def parse(cls, items: Sequence[str]) -> "GoodputThresholds | None":
        """Read items such as "ttft:500"; None for no items. Raises UsageError naming the item."""
        limits: dict[str, float] = {}
        for item in items:
            name, _, text = item.partition(":")
            try:
                value = float(text)
            except ValueError:
                raise UsageError("--goodput", item, _ALLOWED) from None
            if name not in ("ttft", "tpot", "e2el") or name in limits:
                raise UsageError("--goodput", item, _ALLOWED)
            check_range(f"--goodput {name}", value, low=0.0, high=MAX_MS, low_open=True)
            limits[name] = value
        if not limits:
            return None
        return cls(
            ttft_ms=limits.get("ttft"), tpot_ms=limits.get("tpot"), e2el_ms=limits.get("e2el")
        )

    @property
    def label(self) -> str:
        """The limits in words, as "TTFT <= 500 ms, TPOT <= 20 ms"."""
        limits = (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms), ("E2E", self.e2el_ms))
        return ", ".join(f"{name} <= {limit:g} ms" for name, limit in limits if limit is not None)

    def is_met(self, *, ttft_s: float, tpot_s: float | None, e2e_s: float) -> bool:
        """Whether a finished request with these latencies in seconds is a good one."""
        pairs = ((self.ttft_ms, ttft_s), (self.tpot_ms, tpot_s), (self.e2el_ms, e2e_s))
        return all(limit is None or value is None or value * 1e3 <= limit for limit, value in pairs)
