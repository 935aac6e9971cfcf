"""The forward passes over a layer stack: prefill, and decode as first layers, then later layers.

Model-agnostic, and the same on every device. Which rows go on past layer 1's K/V write is decided
between the two by the caller, from decoding/; what a row attends to is the `rows`' business.
"""

from dataclasses import dataclass

from torch import Tensor

from focus_bench.engine.attention import AttentionRows
from focus_bench.engine.layer_stack import LayerStack


@dataclass(frozen=True, kw_only=True)
class FirstLayers:
    """What the first layers hand on for T fed tokens: `hidden` [T, h] enters layer 1's attention.

    `q0` and `q1` [T, Hq, D]: queries of layers 0 and 1 (`q1` None in a model of one layer, whose
    `hidden` is its output); `cos` and `sin` [T, rotary_dim]; `slots` [T] of the cache.
    """

    hidden: Tensor
    q0: Tensor
    q1: Tensor | None
    cos: Tensor
    sin: Tensor
    slots: Tensor


def prefill_layers(
    stack: LayerStack, token_ids: Tensor, positions: Tensor, slots: Tensor, rows: AttentionRows
) -> None:
    """Write the K/V of whole prompt blocks [T] in all layers."""
    cos, sin = stack.rope(positions)
    hidden = stack.embed(token_ids)
    last = stack.num_layers - 1
    for layer in range(stack.num_layers):
        q = stack.project(layer, hidden, cos, sin, slots)
        if layer < last:  # the last layer's output is nobody's input
            hidden = stack.finish(layer, hidden, rows.attend(stack.cache, layer, q), slots)


def first_layers(
    stack: LayerStack, token_ids: Tensor, positions: Tensor, slots: Tensor, rows: AttentionRows
) -> FirstLayers:
    """Layer 0, attending to the history and the whole block, and layer 1 up to its K/V write.

    (A model of one layer runs whole here.)
    """
    cos, sin = stack.rope(positions)
    hidden = stack.embed(token_ids)
    q0 = stack.project(0, hidden, cos, sin, slots)
    hidden = stack.finish(0, hidden, rows.attend(stack.cache, 0, q0), slots)
    q1 = stack.project(1, hidden, cos, sin, slots) if stack.num_layers > 1 else None
    return FirstLayers(hidden=hidden, q0=q0, q1=q1, cos=cos, sin=sin, slots=slots)


def later_layers(stack: LayerStack, kept: FirstLayers, rows: AttentionRows) -> Tensor:
    """Hidden states [kept tokens, h] after the last layer; `kept` holds kept rows only."""
    hidden, q = kept.hidden, kept.q1
    if q is None:
        return hidden
    hidden = stack.finish(1, hidden, rows.attend(stack.cache, 1, q), kept.slots)
    for layer in range(2, stack.num_layers):
        q = stack.project(layer, hidden, kept.cos, kept.sin, kept.slots)
        hidden = stack.finish(layer, hidden, rows.attend(stack.cache, layer, q), kept.slots)
    return hidden
