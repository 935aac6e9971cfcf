"""The slots of a batch: which request runs in which, and the pages that it holds there.

Knows no queue, no policy and no tokens: the scheduler decides who comes in and who must go.
"""

import numpy as np

from focus_bench.decoding.block_state import IntArray
from focus_bench.scheduling.pages import PagePool
from focus_bench.scheduling.request import Phase, Request


class Slots:
    """`count` slots over a page pool. A running request has one slot and the pages of its tokens.

    `page_table`: int32 [count, pages]; row `slot` lists its request's pages in token order, and
    what follows them is stale. `decoding`: bool [count], slots whose request is in its decode
    phase; the scheduler sets it.
    """

    def __init__(self, count: int, pool: PagePool) -> None:
        self.page_table = np.zeros((count, 1), dtype=np.int32)
        self.decoding = np.zeros(count, dtype=np.bool_)
        self._num_pages = np.zeros(count, dtype=np.int64)  # that each slot's request holds
        self._pool = pool
        self._requests: list[Request | None] = [None] * count
        self._free = list(range(count - 1, -1, -1))

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._requests) - len(self._free)

    @property
    def has_free(self) -> bool:
        """Whether a request can be given a slot."""
        return bool(self._free)

    def running(self) -> list[Request]:
        """Requests that hold a slot, by slot."""
        return [request for request in self._requests if request is not None]

    def in_prefill(self) -> list[Request]:
        """Requests that hold a slot and do not decode yet, by slot."""
        slots = np.flatnonzero((self._num_pages > 0) & ~self.decoding)
        return [self.at(slot) for slot in slots.tolist()]

    def at(self, slot: int) -> Request:
        """The request in a slot that is not free."""
        request = self._requests[slot]
        if request is None:
            raise AssertionError(f"slot {slot} is empty")
        return request

    def widen(self, num_tokens: int) -> None:
        """Make the page table wide enough for a request of that many tokens."""
        missing = self._pool.pages_for(num_tokens) - self.page_table.shape[1]
        if missing > 0:
            extra = np.zeros((len(self._requests), missing), dtype=np.int32)
            self.page_table = np.concatenate([self.page_table, extra], axis=1)

    def admit(self, request: Request, num_tokens: int) -> None:
        """Give the request a free slot and the pages for that many tokens."""
        request.slot = self._free.pop()
        self._requests[request.slot] = request
        self.grow(request, self._pool.pages_for(num_tokens))

    def missing_pages(self, num_tokens: IntArray) -> IntArray:
        """Pages [slots] that each decoding request lacks for `num_tokens[slots]` tokens."""
        missing = -(-num_tokens // self._pool.page_size) - self._num_pages
        return np.where(self.decoding, np.maximum(missing, 0), 0)

    def grow(self, request: Request, num_pages: int) -> None:
        """Give the request that many pages more; raises CapacityError if they are not free."""
        slot, held = request.slot, int(self._num_pages[request.slot])
        pages = self._pool.allocate(request.request_id, num_pages)
        self.page_table[slot, held : held + num_pages] = pages
        self._num_pages[slot] = held + num_pages

    def release(self, request: Request) -> None:
        """Take back slot and pages."""
        self._pool.release(request.request_id)
        self._num_pages[request.slot] = 0
        self.decoding[request.slot] = False
        self._requests[request.slot] = None
        self._free.append(request.slot)
        request.slot = -1

    def check_integrity(self) -> None:
        """Assert the invariants of pool, slots and page table."""
        running = self.running()
        self._pool.check_integrity(request.request_id for request in running)
        occupied = {slot for slot, r in enumerate(self._requests) if r is not None}
        assert occupied.isdisjoint(self._free)
        assert len(occupied) + len(set(self._free)) == len(self._requests)
        for request in running:
            assert self._requests[request.slot] is request
            pages = self._pool.pages_of(request.request_id)
            assert self.page_table[request.slot, : len(pages)].tolist() == pages
            assert int(self._num_pages[request.slot]) == len(pages)
            assert bool(self.decoding[request.slot]) == (request.phase is Phase.DECODE)
