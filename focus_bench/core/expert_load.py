"""How tokens spread over a layer's experts, and so how many experts a step reads.

A distribution with one expectation, and what was counted; knows no model, no step and no bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from focus_bench.core.errors import UsageError
from focus_bench.core.expert_spec import ExpertSpec

_ROUNDING = 1e-9


class TouchedExperts(Protocol):
    """What says how many experts are read: ExpertLoad or MeasuredLoad."""

    def expected_touched(self, experts: ExpertSpec, tokens: float) -> float:
        """Different experts that `tokens` tokens of one layer go through."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExpertLoad:
    """Each expert's share of all (token, chosen expert) pairs of a layer; None: all the same.

    Uniform is the worst case for the bytes of weights: whatever prefers some experts reads fewer.
    """

    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.shares is None:
            return
        shares = np.array(self.shares)
        if not len(shares) or not (shares >= 0).all() or abs(shares.sum() - 1.0) > _ROUNDING:
            raise UsageError("expert load", list(self.shares), "shares >= 0 whose sum is 1")

    @classmethod
    def from_counts(cls, counts: Sequence[int]) -> "ExpertLoad":
        """The load that `counts` [experts], tokens per expert, are a sample of."""
        total = sum(counts)
        if total <= 0 or min(counts) < 0:
            raise UsageError("expert load", list(counts), "tokens per expert, not all of them 0")
        return cls(shares=tuple(count / total for count in counts))

    def expected_touched(self, experts: ExpertSpec, tokens: float) -> float:
        """Expected number of different experts that `tokens` tokens of one layer go through.

        Sum over experts of 1 - (1 - p)^tokens, where p = k * share is the chance that a token
        chooses the expert: exact where tokens choose independently of each other. (The mask tokens
        of one block resemble each other, so real steps touch fewer.) Raises UsageError for another
        number of experts, or where an expert's share exceeds 1 / k, since no token chooses twice.
        """
        uniform = np.full(experts.num_experts, 1.0 / experts.num_experts)
        shares = uniform if self.shares is None else np.array(self.shares)
        if len(shares) != experts.num_experts:
            raise UsageError(
                "expert load", f"{len(shares)} shares", f"{experts.num_experts}, one an expert"
            )
        chance = experts.experts_per_token * shares
        if chance.max() > 1.0 + _ROUNDING:
            raise UsageError(
                "expert load",
                f"a share of {shares.max():g}",
                f"at most 1 / {experts.experts_per_token} (experts per token)",
            )
        return float((1.0 - (1.0 - np.minimum(chance, 1.0)) ** tokens).sum())


@dataclass(frozen=True, kw_only=True)
class MeasuredLoad:
    """What a router made of n calls, of `rows` tokens each (ascending), means over layers.

    `touched`: different experts that tokens went to; `largest_share`: the busiest expert's share of
    all (token, chosen expert) pairs.
    """

    rows: tuple[int, ...]
    touched: tuple[float, ...]
    largest_share: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.rows), len(self.touched), len(self.largest_share)}
        if lengths != {len(self.rows)} or not self.rows:
            allowed = "as many of rows, touched and largest_share, at least 1"
            raise UsageError("expert load", f"lengths {sorted(lengths)}", allowed)
        if list(self.rows) != sorted(set(self.rows)) or self.rows[0] < 1:
            raise UsageError("expert load", list(self.rows), "rows from 1 on, ascending")

    def expected_touched(self, experts: ExpertSpec, tokens: float) -> float:
        """On straight lines between what was counted; tokens beyond it are taken to choose
        uniformly and independently.
        """
        if tokens < self.rows[0]:
            return self.touched[0] * tokens / self.rows[0]
        known = float(np.interp(tokens, self.rows, self.touched))
        more = max(0.0, tokens - self.rows[-1])
        untouched = max(0.0, experts.num_experts - known)
        chance = experts.experts_per_token / experts.num_experts
        return float(known + untouched * (1.0 - (1.0 - chance) ** more))


UNIFORM_LOAD = ExpertLoad()
