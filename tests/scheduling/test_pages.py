"""The page pool: owners, order, integrity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.core.errors import CapacityError
from focus_bench.scheduling.pages import PagePool


def test_pages_are_contiguous_from_an_empty_pool_and_in_token_order() -> None:
    pool = PagePool(8, 4)
    assert pool.allocate(1, 3) == [0, 1, 2]
    assert pool.allocate(2, 2) == [3, 4]
    assert pool.allocate(1, 1) == [5]
    assert pool.pages_of(1) == [0, 1, 2, 5]
    assert pool.release(1) == [0, 1, 2, 5]
    assert pool.allocate(3, 4) == [0, 1, 2, 5]
    assert pool.num_free == 2


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (12, 3)])
def test_pages_for_tokens_round_up(tokens: int, pages: int) -> None:
    assert PagePool(1, 4).pages_for(tokens) == pages


def test_too_much_is_refused_with_the_numbers_and_changes_nothing() -> None:
    pool = PagePool(3, 4)
    pool.allocate(1, 2)
    with pytest.raises(CapacityError, match=r"pages: 2 .* at most 1 free pages"):
        pool.allocate(2, 2)
    assert pool.num_free == 1
    assert pool.pages_of(2) == []
    pool.check_integrity([1])


@pytest.mark.parametrize(("pages", "size"), [(0, 4), (4, 0)])
def test_an_empty_pool_is_refused(pages: int, size: int) -> None:
    with pytest.raises(CapacityError, match=r"--num-pages: '\d x \d'"):
        PagePool(pages, size)


def test_lists_handed_out_are_copies() -> None:
    pool = PagePool(4, 1)
    pool.allocate(1, 2)
    pool.pages_of(1).append(3)
    assert pool.pages_of(1) == [0, 1]
    pool.check_integrity([1])


def test_integrity_finds_pages_of_the_dead_and_shared_or_lost_ones() -> None:
    pool = PagePool(4, 1)
    pool.allocate(1, 2)
    with pytest.raises(AssertionError, match=r"ended requests \[1\]"):
        pool.check_integrity([2])
    for damage in (
        lambda p: p._owned[1].append(3),
        lambda p: p._owned[1].pop(),
        lambda p: p._free.append(0),
    ):
        broken = PagePool(4, 1)
        broken.allocate(1, 2)
        damage(broken)
        with pytest.raises(AssertionError, match="lost, doubled or shared"):
            broken.check_integrity()


@given(
    moves=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=40),
    size=st.integers(1, 12),
)
def test_the_pool_equals_a_set_of_free_pages(moves: list[tuple[int, int]], size: int) -> None:
    """Owner 0 to 4 takes a number of pages, or gives all back (0)."""
    pool = PagePool(size, 1)
    free, owned = set(range(size)), {owner: [] for owner in range(5)}
    for owner, count in moves:
        if count == 0:
            assert pool.release(owner) == owned[owner]
            free |= set(owned[owner])
            owned[owner] = []
        elif pool.can_allocate(count):
            taken = pool.allocate(owner, count)
            assert taken == sorted(free)[:count]
            free -= set(taken)
            owned[owner] += taken
        else:
            assert count > len(free)
        assert {o: pool.pages_of(o) for o in owned} == owned
        assert {o: pool.num_pages_of(o) for o in owned} == {o: len(p) for o, p in owned.items()}
        assert (pool.num_free, pool.num_used) == (len(free), size - len(free))
        pool.check_integrity(o for o, pages in owned.items() if pages)
