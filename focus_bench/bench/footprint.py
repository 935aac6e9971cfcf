"""Memory that a point takes on a device, from shapes alone: weights, KV pages, activations.

Knows no device and no framework; an estimate for planning, not what an allocator will say.
"""

from dataclasses import dataclass

from focus_bench.core.config import PointConfig
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.workload import Workload
from focus_bench.scheduling.setup import pages_wanted

# The engine makes float32 logits in chunks of at most this many bytes.
_MAX_LOGIT_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of a point. `kv_pages`: --num-pages, else what the requests can hold at most at once;
    `page_bytes`: of one of them; `activation_bytes`: an upper bound over its steps.
    """

    weight_bytes: int
    kv_pages: int
    page_bytes: int
    activation_bytes: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages."""
        return self.kv_pages * self.page_bytes


def footprint(point: PointConfig, workload: Workload, spec: ModelSpec) -> Footprint:
    """Memory of `point`, whose model runs as `spec` (number format included)."""
    scheduler = point.scheduler
    return Footprint(
        weight_bytes=spec.weight_bytes,
        kv_pages=scheduler.num_pages or pages_wanted(point, workload),
        page_bytes=spec.kv_bytes_per_token * scheduler.page_size,
        activation_bytes=_activation_bytes(point, workload, spec),
    )


def _activation_bytes(point: PointConfig, workload: Workload, spec: ModelSpec) -> int:
    """Every tensor of a layer for the tokens of the largest forward, none reused, and logits.

    Prefill and decode rows are forwards of their own, so the larger one counts.
    """
    rows = min(point.scheduler.batch_size, len(workload.requests)) * point.decode.block_length
    prompts = sum(request.num_prompt_tokens for request in workload.requests)
    tokens = max(rows, min(point.scheduler.max_prefill_tokens, prompts))
    residuals = 2 * spec.hidden_size
    attention = 2 * spec.q_size + 2 * spec.kv_size  # queries, keys, values and the output
    feed_forward = 3 * spec.token_width  # gate, up and their product
    layer_bytes = tokens * (residuals + attention + feed_forward) * spec.dtype_bytes
    return layer_bytes + min(4 * rows * spec.vocab_size, _MAX_LOGIT_BYTES)
