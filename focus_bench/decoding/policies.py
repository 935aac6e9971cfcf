"""The policy table: what each policy feeds, freezes and evicts (algorithm section 2).

A policy is a row of parameters, not a class; the rules that read it are in caching and eviction.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import ModelSpec


class Freezing(IntEnum):
    """Which decoded positions keep their K/V for the rest of the block and are fed no more."""

    NONE = 0
    DECODED = 1  # decoded, and fed once more since
    NEIGHBOR = 2  # the same, and the right neighbour is decoded too (paper 4.3)


class EvictionKind(IntEnum):
    """How masked positions are chosen for the layers after layer 1's K/V write."""

    NONE = 0
    DYNAMIC = 1  # budget of Eq. 4 and 5, top importance delta
    FIXED = 2  # fixed K, top, random or bottom (paper, Table 3)
    IDEAL = 3  # what the step decodes without eviction: the bound on any predictor


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One row of the table.

    `sub_block_length` > 0: the block is decoded in sub-blocks of that many positions, in order.
    `adaptive`: baseline or focus, chosen per sequence at the start of each block. `in_engine_run`
    False: only `simulate` and `eval`. (Whether logits are shifted is the model's business.)
    """

    name: str
    freezing: Freezing = Freezing.NONE
    eviction: EvictionKind = EvictionKind.NONE
    sub_block_length: int = 0
    adaptive: bool = False
    in_engine_run: bool = True

    @property
    def may_recompute(self) -> bool:
        """Whether K/V dropped at a preemption can be recomputed without changing tokens: only if
        each step feeds the whole block, so that no K/V of the current block outlives a step.
        """
        return self.freezing is Freezing.NONE and not self.adaptive and not self.sub_block_length


_ROWS = (
    Policy(name="baseline"),
    Policy(name="delayed-cache", freezing=Freezing.DECODED),
    Policy(name="delayed-cache-neighbor", freezing=Freezing.NEIGHBOR),
    Policy(name="focus", freezing=Freezing.NEIGHBOR, eviction=EvictionKind.DYNAMIC),
    Policy(name="focus-fixed", freezing=Freezing.NEIGHBOR, eviction=EvictionKind.FIXED),
    Policy(name="adaptive", freezing=Freezing.NEIGHBOR, adaptive=True),
    Policy(
        name="ideal",
        freezing=Freezing.NEIGHBOR,
        eviction=EvictionKind.IDEAL,
        in_engine_run=False,
    ),
    Policy(name="fast-dllm-v2", sub_block_length=8),
)
POLICIES: dict[str, Policy] = {policy.name: policy for policy in _ROWS}

# Per-row behaviour in a batch: block_state keeps a code, these arrays turn codes into parameters.
POLICY_CODES: dict[str, int] = {policy.name: code for code, policy in enumerate(_ROWS)}
FREEZES_OF_CODE = np.array([policy.freezing != Freezing.NONE for policy in _ROWS])
NEEDS_NEIGHBOR_OF_CODE = np.array([policy.freezing == Freezing.NEIGHBOR for policy in _ROWS])
FIXED_OF_CODE = np.array([policy.eviction == EvictionKind.FIXED for policy in _ROWS])
IDEAL_OF_CODE = np.array([policy.eviction == EvictionKind.IDEAL for policy in _ROWS])
BY_SCORE_OF_CODE = FIXED_OF_CODE | [p.eviction == EvictionKind.DYNAMIC for p in _ROWS]
SUB_BLOCK_OF_CODE = np.array([policy.sub_block_length for policy in _ROWS], dtype=np.int64)


def get_policy(name: str) -> Policy:
    """The table row called `name`; raises UsageError naming what exists."""
    if name not in POLICIES:
        raise UsageError("--policy", name, ", ".join(POLICIES))
    return POLICIES[name]


def check_suits_model(name: str, spec: ModelSpec) -> None:
    """Raise UsageError for a policy that cannot decode the model, by name.

    Where logits are shifted a position is decoded by the row before it, which policies that freeze
    or evict might not have.
    """
    if spec.shifted_logits and not _has_every_row(POLICIES[name]):
        allowed = ", ".join(other for other, row in POLICIES.items() if _has_every_row(row))
        raise UsageError("--policy", name, f"{allowed} with {spec.name}, whose logits are shifted")


def _has_every_row(policy: Policy) -> bool:
    """Whether the row before each position that a step may decode goes through all layers."""
    evicts = policy.eviction is not EvictionKind.NONE or policy.adaptive
    return policy.freezing is Freezing.NONE and not evicts


def code_at_block_start(policy: Policy, *, running_batch: int, focus_min_batch: int) -> int:
    """The behaviour of a sequence for its next block (paper F.2 for `adaptive`)."""
    if not policy.adaptive:
        return POLICY_CODES[policy.name]
    return POLICY_CODES["baseline" if running_batch < focus_min_batch else "focus"]
