"""The page pool conserves pages whatever is asked of it, and refuses misuse by name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crucible.errors import InputError, UnavailableError
from crucible.kv.pool import PagePool, PoolExhausted

steps = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.booleans()), max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 24), steps)
def test_no_page_is_lost_or_owned_twice(num_pages, actions):
    pool, model = PagePool(num_pages), {}
    for owner, n, release in actions:
        if release and owner in model:
            assert pool.free(owner) == len(model.pop(owner))
        elif not release and n <= pool.available:
            pages = pool.allocate(n, owner)
            taken = [p for owned in model.values() for p in owned]
            assert len(pages) == n and not set(pages) & set(taken)
            if pages:
                model.setdefault(owner, []).extend(pages)
        elif not release:
            with pytest.raises(PoolExhausted):
                pool.allocate(n, owner)
        pool.check()
        assert pool.used == sum(map(len, model.values())) == num_pages - pool.available
        for owned_by, pages in model.items():
            assert pool.pages_of(owned_by) == pages
            assert all(pool.owner_of(p) == owned_by for p in pages)


def test_pages_come_in_the_given_order_and_all_or_none():
    order = np.random.default_rng(1).permutation(8)
    pool = PagePool(8, order)
    assert pool.allocate(5, "r") == order[:5].tolist()
    with pytest.raises(PoolExhausted, match="4 pages asked for, 3 of 8 free"):
        pool.allocate(4, "s")
    assert (pool.used, pool.available) == (5, 3) and pool.owner_of(int(order[7])) is None
    assert issubclass(PoolExhausted, UnavailableError)
    assert pool.allocate(0, "s") == [] and pool.pages_of("s") == []


@pytest.mark.parametrize(
    "action, named",
    [
        (lambda: PagePool(0), "num_pages 0"),
        (lambda: PagePool(3, [0, 1, 1]), "permutation of 0..2"),
        (lambda: PagePool(3).allocate(-1, "a"), "allocate -1 pages"),
        (lambda: PagePool(3).allocate(1, None), "owner None"),
        (lambda: PagePool(3).free("a"), "owner 'a' owns no pages"),
        (lambda: PagePool(3).owner_of(3), "page 3 is outside the pool 0..2"),
        (lambda: PagePool(3).owner_of(-1), "page -1"),
    ],
)
def test_misuse_is_named(action, named):
    with pytest.raises(InputError, match=named):
        action()


def test_a_second_free_is_refused():
    pool = PagePool(4)
    pool.allocate(2, 7)
    pool.free(7)
    with pytest.raises(InputError, match="owner 7 owns no pages"):
        pool.free(7)


@pytest.mark.parametrize("break_it", ["lost", "twice", "unrecorded"])
def test_check_catches_a_broken_pool(break_it):
    pool = PagePool(4)
    pages = pool.allocate(2, "a")
    if break_it == "lost":
        pool._free.pop()
    elif break_it == "twice":
        pool._free.append(pages[0])
    else:
        pool._owner[pages[0]] = "b"
    with pytest.raises(AssertionError):
        pool.check()
