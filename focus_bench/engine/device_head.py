"""The unmasking head on a GPU: which token each needed row draws, and how sure the model is of it.

Knows rows of hidden states and their positions' random numbers; no block and no eviction.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.engine.host_step import sample_rows
from focus_bench.engine.kernels.unmask_head.launcher import unmask_head
from focus_bench.engine.kernels.unmask_head.workspace import HeadConfig
from focus_bench.engine.layer_stack import LayerStack
from focus_bench.engine.models.base import BlockDiffusionModel

# Of logits at once. Greedy: on an H200 256 MiB is the fastest of 32, 256 and 1,024 MiB for 4,000
# rows, and 1 % behind for fewer. A draw recomputes what the buffer no longer holds.
GREEDY_CHUNK_BYTES = 256 << 20
DRAW_CHUNK_BYTES = 1 << 30


class DeviceHead:
    """Draws tokens for at most `max_rows` rows at once, and reads them back."""

    def __init__(
        self,
        model: BlockDiffusionModel,
        stack: LayerStack,
        sampling: SamplingConfig,
        *,
        max_rows: int,
    ) -> None:
        spec, pinned = model.spec, model.device.type == "cuda"
        is_greedy = sampling.temperature == 0.0
        self._model = model
        self._stack = stack
        self._sampling = sampling
        self._filters = not is_greedy and (sampling.top_k > 0 or sampling.top_p < 1.0)
        self._config = HeadConfig(
            mask_token_id=spec.mask_token_id,
            num_valid_ids=spec.tokenizer_size or spec.vocab_size,
            temperature=sampling.temperature,
            max_chunk_bytes=GREEDY_CHUNK_BYTES if is_greedy else DRAW_CHUNK_BYTES,
        )
        self._tokens = torch.zeros(max_rows, dtype=torch.int32, pin_memory=pinned)
        self._confidence = torch.zeros(max_rows, dtype=torch.float32, pin_memory=pinned)

    def draw(self, hidden: Tensor, rows: Tensor, uniforms: npt.NDArray[np.float64] | None) -> None:
        """Draw for `rows` int32 [R] of the last layer's output, and start reading back.

        `uniforms[R]` in [0, 1) where the temperature is above 0.
        """
        tokens, confidence = self.compute(hidden, rows, uniforms)
        self._tokens[: len(rows)].copy_(tokens, non_blocking=True)
        self._confidence[: len(rows)].copy_(confidence, non_blocking=True)

    def compute(
        self, hidden: Tensor, rows: Tensor, uniforms: npt.NDArray[np.float64] | None
    ) -> tuple[Tensor, Tensor]:
        """Tokens and confidences [R] on the device; arguments as of `draw`."""
        needed = hidden.index_select(0, rows)
        draws = None
        if uniforms is not None:
            draws = torch.from_numpy(uniforms).to(hidden.device)
        if self._filters:  # filters need whole distributions: rows in chunks, not the vocabulary
            return sample_rows(self._model, needed, self._sampling, draws)
        return unmask_head(
            self._stack.normed(needed), self._stack.head, config=self._config, uniforms=draws
        )

    def read(self, num_rows: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Tokens and confidences [R] of the last draw, once the device has got there."""
        return self._tokens.numpy()[:num_rows], self._confidence.numpy()[:num_rows]
