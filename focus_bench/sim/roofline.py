"""Time of a step by a roofline over its operations, from a data sheet. Knows no measurements."""

from dataclasses import dataclass
from functools import cached_property

from focus_bench.core.costs import OpCost, Phase, StepShape, step_ops, swap_bytes
from focus_bench.core.errors import check_range
from focus_bench.core.expert_load import UNIFORM_LOAD, ExpertLoad
from focus_bench.core.hardware import Hardware
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.records import StepTiming

_ATTENTION_OPS = frozenset({"attention_scores", "attention_values", "importance"})


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """How much of the data sheet's peaks is reached, and what the host adds: assumed, not measured.

    Fractions of the peak FLOP/s for large matrix products (`gemm`) and for attention, and of the
    bandwidths; `launch_s` seconds per kernel; `host_step_s` and `host_row_s` per step and per
    running sequence (scheduling, bookkeeping, launching).
    """

    gemm: float = 0.7
    attention: float = 0.35
    bandwidth: float = 0.8
    host_link: float = 0.8
    launch_s: float = 3e-6
    host_step_s: float = 5e-4
    host_row_s: float = 3e-6

    def __post_init__(self) -> None:
        for field in ("gemm", "attention", "bandwidth", "host_link"):
            check_range(
                f"efficiency {field}", getattr(self, field), low=0.0, high=1.0, low_open=True
            )
        for field in ("launch_s", "host_step_s", "host_row_s"):
            check_range(f"efficiency {field}", getattr(self, field), low=0.0)


def roofline_label(hardware: Hardware) -> str:
    """What every output says about predictions from a data sheet alone."""
    return f"uncalibrated datasheet roofline ({hardware.full_name})"


def arithmetic_caveat(spec: ModelSpec) -> str:
    """What stands behind a label where numbers are wider than those of the peak rates."""
    return "; float32 products at 16-bit rates (too fast)" if spec.dtype == "float32" else ""


@dataclass(frozen=True, kw_only=True)
class RooflineModel:
    """Sum over operations of max(FLOPs / peak, bytes / bandwidth), plus launches and host time.

    `expert_load`: how tokens spread over experts, in a model that has any.
    """

    spec: ModelSpec
    hardware: Hardware
    efficiency: Efficiency = Efficiency()
    expert_load: ExpertLoad = UNIFORM_LOAD

    @property
    def label(self) -> str:
        """Names the data sheet and that nothing was measured."""
        return roofline_label(self.hardware) + arithmetic_caveat(self.spec)

    def step_timing(self, shape: StepShape) -> StepTiming:
        """Seconds of one step (see the class)."""
        seconds = dict.fromkeys(Phase, 0.0)
        gemm, attention, memory, launch_s = self._seconds_each
        for name, phase, flops, num_bytes, launches in step_ops(self.spec, shape, self.expert_load):
            compute_s = flops * (attention if name in _ATTENTION_OPS else gemm)
            memory_s = num_bytes * memory
            busy_s = compute_s if compute_s > memory_s else memory_s
            seconds[phase] += busy_s + launches * launch_s
        link = self.hardware.host_link_bandwidth * self.efficiency.host_link
        swap_s = swap_bytes(self.spec, shape) / link
        rows = shape.forwards[0].num_rows if shape.forwards else 0
        host_s = self.efficiency.host_step_s + self.efficiency.host_row_s * rows
        return StepTiming(
            duration_s=sum(seconds.values()) + swap_s + host_s,
            prefill_s=seconds[Phase.PREFILL],
            prefix_s=seconds[Phase.PREFIX],
            eviction_s=seconds[Phase.EVICTION],
            suffix_s=seconds[Phase.SUFFIX],
            head_s=seconds[Phase.HEAD],
            swap_s=swap_s,
            host_s=host_s,
        )

    def op_s(self, op: OpCost) -> float:
        """Seconds of one operation."""
        gemm, attention, memory, launch_s = self._seconds_each
        compute_s = op.flops * (attention if op.name in _ATTENTION_OPS else gemm)
        return max(compute_s, op.num_bytes * memory) + op.launches * launch_s

    @cached_property
    def _seconds_each(self) -> tuple[float, float, float, float]:
        """Seconds of a FLOP of a product, of one of attention, of a byte, of a launch."""
        efficiency, hardware = self.efficiency, self.hardware
        return (
            1.0 / (hardware.dense_16bit_flops * efficiency.gemm),
            1.0 / (hardware.dense_16bit_flops * efficiency.attention),
            1.0 / (hardware.memory_bandwidth * efficiency.bandwidth),
            efficiency.launch_s,
        )
