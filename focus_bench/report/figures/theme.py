"""Colours and signs of the report's figures, the same everywhere. Knows no figure and no library.

A colour is asked for by its role, so that one drawing serves light and dark. The hues are those of
Okabe and Ito (2008), which stay apart for colour-blind readers, with their lightness fitted to each
background; signs of policies differ in shape as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from focus_bench.core.config import POLICY_NAMES


@dataclass(frozen=True, kw_only=True)
class PolicySign:
    """How figures show a policy: its short name, its colour's role, and its marker."""

    short: str
    role: str
    marker: str


# Order and abbreviations are those of the paper (DC, DC+).
_SIGNS = {
    "baseline": ("baseline", "o"),
    "delayed-cache": ("DC", "v"),
    "delayed-cache-neighbor": ("DC+", "s"),
    "focus": ("focus", "D"),
    "focus-fixed": ("fixed", "P"),
    "adaptive": ("adaptive", "^"),
    "ideal": ("ideal", "*"),
    "fast-dllm-v2": ("fast-dLLM", "X"),
}
# Parts of a step in the order in which they run; names of metrics.StepShares.
STEP_PARTS = ("prefill", "prefix", "eviction", "suffix", "head", "swap", "host")

_LIGHT = {
    "page": "#f6f7f9",
    "surface": "#ffffff",
    "ink": "#1a1f29",
    "muted": "#5a6473",
    "line": "#d9dee6",
    "grid": "#e8ebf0",
    "accent": "#0072b2",
    "warn": "#8a5300",
    "warn-surface": "#fff3dc",
    "bad": "#b3261e",
    "good": "#00755a",
    "policy-baseline": "#5f6875",
    "policy-delayed-cache": "#3f9fdb",
    "policy-delayed-cache-neighbor": "#0067a5",
    "policy-focus": "#d55e00",
    "policy-focus-fixed": "#b5568f",
    "policy-adaptive": "#009e73",
    "policy-ideal": "#a68a00",
    "policy-fast-dllm-v2": "#85572c",
    "part-prefill": "#c3c9d3",
    "part-prefix": "#88bbe8",
    "part-eviction": "#ee8866",
    "part-suffix": "#44aa99",
    "part-head": "#ddcc66",
    "part-swap": "#cc88bb",
    "part-host": "#8f98a6",
    "faster": "#d55e00",
    "slower": "#0072b2",
}
_DARK = {
    "page": "#0f1218",
    "surface": "#171b23",
    "ink": "#e7eaf0",
    "muted": "#a0a9b8",
    "line": "#323946",
    "grid": "#272d38",
    "accent": "#6cb8ee",
    "warn": "#f2c46d",
    "warn-surface": "#332813",
    "bad": "#ff8f86",
    "good": "#5fd0ac",
    "policy-baseline": "#aab3c0",
    "policy-delayed-cache": "#8fd0f8",
    "policy-delayed-cache-neighbor": "#4a9fe0",
    "policy-focus": "#ff8a3d",
    "policy-focus-fixed": "#e292c0",
    "policy-adaptive": "#3ecba0",
    "policy-ideal": "#e5cf4f",
    "policy-fast-dllm-v2": "#c89a6c",
    "part-prefill": "#59616f",
    "part-prefix": "#4f88bd",
    "part-eviction": "#d06f4c",
    "part-suffix": "#2f8a7b",
    "part-head": "#a5963c",
    "part-swap": "#9c5f8d",
    "part-host": "#7a8493",
    "faster": "#ff8a3d",
    "slower": "#4a9fe0",
}
THEMES: Mapping[str, Mapping[str, str]] = {"light": _LIGHT, "dark": _DARK}
# Colours that stand for roles while a drawing is made; none of them is a colour of a theme.
PLACEHOLDERS: Mapping[str, str] = {
    role: f"#fe01{index:02x}" for index, role in enumerate(_LIGHT, start=1)
}


def policy_sign(policy: str) -> PolicySign:
    """The policy's name, role and marker in figures."""
    short, marker = _SIGNS[policy]
    return PolicySign(short=short, role=f"policy-{policy}", marker=marker)


def policy_order(policy: str) -> int:
    """Where figures list the policy."""
    return POLICY_NAMES.index(policy)


def css_variables(theme: str) -> str:
    """The theme as declarations of CSS custom properties, one for each role."""
    return "".join(f"--{role}:{colour};" for role, colour in THEMES[theme].items())
