"""What stands in for a GPU while calibration runs on a CPU: launchers that log, timers that do not
time, and a log of PyTorch's own products.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from focus_bench.engine import (
    device_head,
    kernel_rows,
    measured_eviction,
    measured_finish,
    measured_layers,
)
from focus_bench.engine.kernels.expert_routing.launcher import Routing
from focus_bench.engine.kernels.grouped_experts import launcher as grouped
from focus_bench.engine.models import fused_base, moe_fused, sdar_fused
from focus_bench.engine.op_timer import Call


class Kernels:
    """Stand-ins for the launchers: log name and shapes, give tensors of the right shape."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        self.log.append(("rms_norm", *x.shape))
        return x

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        self.log.append(("silu_mul", *gate_up.shape))
        return gate_up[:, : gate_up.shape[1] // 2]

    def skinny_linear(self, x: Tensor, weight: Tensor, **of: Any) -> Tensor:
        self.log.append(("skinny_linear", len(x), *weight.shape))
        return of["residual"] if of else x.new_zeros((len(x), len(weight)))

    def qk_norm_rope(
        self, qkv: Tensor, norm: Tensor, cos: Tensor, *_: Any, num_q_heads: int
    ) -> Tensor:
        self.log.append(("qk_norm_rope", *qkv.shape))
        assert len(cos) == len(qkv)
        return qkv.new_zeros((len(qkv), num_q_heads, norm.shape[1]))

    def paged_attention(self, q: Tensor, keys: Tensor, values: Tensor, layout: Any) -> Tensor:
        self.log.append(("attention", layout, q, keys))
        return q.flatten(1)

    def unmask_head(self, hidden: Tensor, weight: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        self.log.append(("unmask_head", len(hidden), *weight.shape))
        return torch.zeros(len(hidden), dtype=torch.int32), torch.zeros(len(hidden))

    def importance_delta(self, q0: Tensor, *_: Any, out: Tensor) -> Tensor:
        self.log.append(("importance", *q0.shape, _[-1]))
        return out

    def select(self, inputs: Any, outputs: Any, *, mode: str) -> None:
        self.log.append(("select", *inputs.fed.shape, mode))

    def compact(self, kept: Tensor, fed: Tensor, *_: Any) -> None:
        self.log.append(("compact", len(fed), int(fed.sum()), int(kept.sum())))

    def route(self, logits: Tensor, config: Any, **_: Any) -> Routing:
        """Token t goes to experts t, t + 1, ..."""
        self.log.append(("route", *logits.shape))
        rows, num_experts = logits.shape
        ids = (torch.arange(rows)[:, None] + torch.arange(config.top_k)) % num_experts
        return Routing(ids=ids.int(), weights=torch.ones(ids.shape))

    def grouped_experts(
        self, x: Tensor, weights: Any, routing: Routing, *, out: Tensor, **of: Any
    ) -> Tensor:
        self.log.append(("experts", len(x), weights.gate_up.data_ptr(), of["shared"] is not None))
        assert of["residual"] is out
        assert len(routing.ids) == len(x)
        return out

    @property
    def names(self) -> list[str]:
        return [entry[0] for entry in self.log]


@dataclass
class FakeTimer:
    """Calls everything once and says how long it would like it to have taken."""

    kernels: Kernels
    device_calls: int = 0
    host_calls: int = 0
    sustained_calls: int = 0
    num_captured: int = 0
    lengths: list[int] = field(default_factory=list)

    def device_s(self, calls: Sequence[Call]) -> list[float]:
        self.device_calls += 1
        self.lengths.append(len(calls))
        for call in calls:
            call()
        return [2e-5, 3e-5, 4e-5]

    def sustained_s(self, calls: Sequence[Call]) -> list[float]:
        self.sustained_calls += 1
        calls[0]()
        return [5e-5]

    def host_s(self, call: Call) -> list[float]:
        self.host_calls += 1
        call()
        return [1e-4, 1e-4]

    def captured(self, call: Call) -> Call:
        self.num_captured += 1
        return call


def replace_launchers(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The stand-ins, in place of the launchers wherever calibration calls them."""
    fakes = Kernels()
    for module, names in (
        (fused_base, ("rms_norm", "skinny_linear", "qk_norm_rope")),
        (sdar_fused, ("silu_mul",)),
        (moe_fused, ("silu_mul", "route")),
        (grouped, ("grouped_experts",)),
        (measured_layers, ("rms_norm",)),
        (measured_finish, ("silu_mul",)),
        (kernel_rows, ("paged_attention",)),
        (device_head, ("unmask_head",)),
        (measured_eviction, ("importance_delta", "select", "compact")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, getattr(fakes, name))
    return fakes


class Products(TorchDispatchMode):
    """Shapes of the matrix products that PyTorch does itself: rows, inner, outer."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in {"mm", "linear"}:
            self.shapes.append((*args[0].shape, result.shape[1]))
        elif name in {"addmm", "addmm_"}:
            self.shapes.append((*args[1].shape, result.shape[1]))
        return result
