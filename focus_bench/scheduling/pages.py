"""The page pool: which KV pages belong to which request. Knows no tensors and no policy."""

from collections.abc import Iterable
from heapq import heappop, heappush

from focus_bench.core.errors import CapacityError


class PagePool:
    """`num_pages` pages of `page_size` tokens; a page has at most one owner (a request id).

    Freed pages are handed out again lowest id first, so an empty pool gives contiguous ranges and
    the same calls give the same pages.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise CapacityError("--num-pages", f"{num_pages} x {page_size}", "at least 1 page")
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages))  # a heap
        self._owned: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Pages without an owner."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages with an owner."""
        return self.num_pages - len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def pages_of(self, owner: int) -> list[int]:
        """The owner's pages in order of its tokens (a copy)."""
        return list(self._owned.get(owner, ()))

    def num_pages_of(self, owner: int) -> int:
        """How many pages the owner holds."""
        return len(self._owned.get(owner, ()))

    def can_allocate(self, count: int) -> bool:
        """Whether `count` pages are free."""
        return count <= len(self._free)

    def allocate(self, owner: int, count: int) -> list[int]:
        """Give `count` more pages to the owner; raises CapacityError if they are not free."""
        if count > len(self._free):
            raise CapacityError("pages", count, f"at most {len(self._free)} free pages")
        taken = [heappop(self._free) for _ in range(count)]
        self._owned.setdefault(owner, []).extend(taken)
        return taken

    def release(self, owner: int) -> list[int]:
        """Take back all pages of the owner; returns them in order of its tokens."""
        pages = self._owned.pop(owner, [])
        for page in pages:
            heappush(self._free, page)
        return pages

    def check_integrity(self, live_owners: Iterable[int] | None = None) -> None:
        """Assert that every page is either free or owned once, and that only live requests own."""
        seen = list(self._free)
        for pages in self._owned.values():
            seen.extend(pages)
        if sorted(seen) != list(range(self.num_pages)):
            raise AssertionError("page pool: a page is lost, doubled or shared")
        if live_owners is not None:
            dead = set(self._owned) - set(live_owners)
            if dead:
                raise AssertionError(f"page pool: pages owned by ended requests {sorted(dead)}")
