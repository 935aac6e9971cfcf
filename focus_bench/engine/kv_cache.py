"""Paged KV cache: keys and values of every layer in numbered slots, page by page.

Knows tensors and slots; which sequence owns which page is the scheduler's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.core.errors import check_range
from focus_bench.core.model_spec import ModelSpec

IntArray = npt.NDArray[np.int64]


def slot_ids(page_table: npt.ArrayLike, positions: npt.ArrayLike, page_size: int) -> IntArray:
    """Cache slots of one sequence's absolute `positions`, int64, shaped like them.

    `page_table` lists the sequence's pages in order; slot = page * page_size + offset in the page.
    """
    page, offset = np.divmod(np.asarray(positions, dtype=np.int64), page_size)
    return np.asarray(page_table, dtype=np.int64)[page] * page_size + offset


@dataclass(frozen=True, kw_only=True)
class KVSlots:
    """Contents of some slots over all layers: `keys` and `values` [layers, slots, Hkv, D]."""

    keys: Tensor
    values: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of both tensors."""
        return self.keys.nbytes + self.values.nbytes


class PagedKVCache:
    """Keys and values [num_layers, num_pages * page_size, Hkv, D] on one device.

    Slots that were never written hold zeros; nothing may attend to them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_pages: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        check_range("num_pages", num_pages, low=1)
        check_range("page_size", page_size, low=1)
        self.num_pages = num_pages
        self.page_size = page_size
        shape = (spec.num_layers, num_pages * page_size, spec.num_kv_heads, spec.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def num_slots(self) -> int:
        """Tokens that the cache can hold."""
        return self.num_pages * self.page_size

    @property
    def device(self) -> torch.device:
        """Where keys and values lie."""
        return self.keys.device

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views [slots, Hkv, D] of one layer's keys and values."""
        return self.keys[layer], self.values[layer]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [T, Hkv, D] in distinct int64 `slots` [T] of one layer."""
        self.keys[layer].index_copy_(0, slots, k)
        self.values[layer].index_copy_(0, slots, v)

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values [n, Hkv, D] in int64 `slots` [n] of one layer."""
        return self.keys[layer].index_select(0, slots), self.values[layer].index_select(0, slots)

    def snapshot(self, slots: Tensor) -> KVSlots:
        """Copy int64 `slots` [n] of all layers, on the device (for policy ``ideal``)."""
        return KVSlots(
            keys=self.keys.index_select(1, slots), values=self.values.index_select(1, slots)
        )

    def restore(self, slots: Tensor, saved: KVSlots) -> None:
        """Write what `snapshot` saved back into `slots`, which may be others than it came from."""
        self.keys.index_copy_(1, slots, saved.keys)
        self.values.index_copy_(1, slots, saved.values)

    def copy_pages_out(self, pages: Sequence[int]) -> KVSlots:
        """Copy whole pages of all layers to the host, in the order given (preemption)."""
        saved = self.snapshot(self._page_slots(pages))
        return KVSlots(keys=saved.keys.cpu(), values=saved.values.cpu())

    def copy_pages_in(self, pages: Sequence[int], saved: KVSlots) -> None:
        """Copy what `copy_pages_out` saved into as many `pages`, in the order given."""
        device = self.device
        on_device = KVSlots(keys=saved.keys.to(device), values=saved.values.to(device))
        self.restore(self._page_slots(pages), on_device)

    def _page_slots(self, pages: Sequence[int]) -> Tensor:
        first = np.asarray(pages, dtype=np.int64)[:, None] * self.page_size
        slots = (first + np.arange(self.page_size, dtype=np.int64)).reshape(-1)
        return torch.from_numpy(slots).to(self.device)
