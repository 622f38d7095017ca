"""Shared pages: hits by content alone, one writer a page, eviction of leaves, and no page ever lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crucible.errors import InputError
from crucible.kv.pool import PoolExhausted
from crucible.kv.prefix import PrefixPool

SPACE = ("model", 1)


def fill(pool: PrefixPool, holder, tokens) -> list[int]:
    """Run a text through the pool: match, take, allocate, commit; its pages."""
    match = pool.match(tokens, SPACE)
    pool.take(holder, match)
    pool.allocate(-(-len(tokens) // 16) - len(match.nodes), holder)
    pool.unpin(holder)
    pool.commit(holder, tokens, len(tokens), SPACE)
    pool.check()
    return pool.pages_of(holder)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48, 49])
@pytest.mark.parametrize("longer", [0, 1, 15, 16, 17])
def test_a_text_hits_all_stored_full_pages_but_never_its_last_token(length, longer):
    pool = PrefixPool(16)
    text = list(range(100, 100 + length))
    fill(pool, "a", text)
    match = pool.match([*text, *range(longer)], SPACE)
    stored, last = length // 16 * 16, length + longer - 1
    assert match.rows == min(stored, last)
    assert match.tail_rows == match.rows % 16 and len(match.nodes) == match.rows // 16


def test_a_page_that_goes_on_differently_is_hit_up_to_the_difference_and_copied():
    pool = PrefixPool(8)
    first = fill(pool, "a", list(range(32)))
    other = [*range(24), 99, 99, 99, 99]
    match = pool.match(other, SPACE)
    assert (match.rows, match.tail_rows, match.tail.page) == (24, 8, first[1])
    pool.take("b", match)
    pages = pool.allocate(1, "b")
    pool.release("a")
    pool.check()
    assert match.tail.refs == 1 and pages[0] != first[1]  # kept until the copy is made
    pool.unpin("b")
    pool.check()
    assert pool.pages_of("b") == [first[0], *pages] and (pool.copies, pool.saved_rows) == (1, 24)


def test_content_decides_and_not_a_position_or_a_neighbour():
    pool = PrefixPool(8)
    fill(pool, "a", [*[1] * 16, *[2] * 16])
    assert pool.match([2] * 17, SPACE).rows == 0  # the same tokens elsewhere in the text
    assert pool.match([*[3] * 16, *[2] * 17], SPACE).rows == 0  # the same page after another one
    assert pool.match([*[1] * 16, *[2] * 17], SPACE).rows == 32


def test_another_model_or_contract_version_never_hits():
    pool = PrefixPool(8)
    fill(pool, "a", [1] * 33)
    assert pool.match([1] * 33, ("model", 2)).rows == 0
    assert pool.match([1] * 33, ("other", 1)).rows == 0
    assert pool.match([1] * 33, SPACE).rows == 32


def test_two_holders_that_fill_the_same_page_at_once_end_with_one():
    pool = PrefixPool(8)
    text = list(range(20))
    for holder in ("a", "b"):
        pool.take(holder, pool.match(text, SPACE))
        pool.allocate(2, holder)
    assert pool.commit("a", text, 20, SPACE) is False
    assert pool.commit("b", text, 20, SPACE) is True
    pool.check()
    assert pool.pages_of("a")[0] == pool.pages_of("b")[0] and pool.pages_of("a")[1] != pool.pages_of("b")[1]
    assert pool.used == 3 and pool.adopted == 1
    assert pool.exclusive("a") == 1


def test_eviction_takes_the_least_recently_used_leaf_and_never_a_held_page():
    pool = PrefixPool(4)
    fill(pool, "a", [*[1] * 16, *[2] * 16])
    fill(pool, "b", [3] * 16)
    pool.release("a")
    pool.release("b")
    pool.take("c", pool.match([1] * 17, SPACE))  # holds the first page of a's text
    assert (pool.free, pool.cached) == (1, 2)
    pool.allocate(2, "c")
    pool.check()
    assert pool.match([*[1] * 16, *[2] * 17], SPACE).rows == 16  # a's second page went, the oldest leaf
    assert pool.match([3] * 17, SPACE).rows == 16
    pool.allocate(1, "c")
    assert pool.match([3] * 17, SPACE).rows == 0
    with pytest.raises(PoolExhausted, match="1 pages asked for, 0 of 4"):
        pool.allocate(1, "c")
    assert pool.evictions == 2


def test_taking_for_all_before_allocating_for_any_keeps_what_was_matched():
    pool = PrefixPool(3)
    fill(pool, "a", [1] * 16)
    pool.release("a")
    match = pool.match([1] * 17, SPACE)
    pool.take("b", match)
    with pytest.raises(PoolExhausted):
        pool.allocate(3, "c")
    pool.allocate(2, "c")
    assert pool.pages_of("b") == [match.nodes[0].page]


def test_without_sharing_nothing_is_matched_or_cached():
    pool = PrefixPool(4, share=False)
    fill(pool, "a", [1] * 33)
    assert pool.match([1] * 33, SPACE).rows == 0
    pool.release("a")
    assert (pool.free, pool.cached) == (4, 0)


def test_misuse_is_refused():
    pool = PrefixPool(4, order=[3, 1, 2, 0])
    fill(pool, "a", [1])
    assert pool.pages_of("a") == [3]
    for wrong in (lambda: pool.release("b"), lambda: pool.take("a", pool.match([1], SPACE))):
        with pytest.raises(InputError, match="hold"):
            wrong()
    with pytest.raises(InputError, match="permutation"):
        PrefixPool(3, order=[0, 1, 1])


def test_a_leaked_page_is_noticed():
    pool = PrefixPool(4)
    fill(pool, "a", [1] * 17)
    pool._held["a"].private.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check()


def test_a_miscounted_holder_is_noticed():
    pool = PrefixPool(4)
    fill(pool, "a", [1] * 17)
    pool._held["a"].nodes[0].refs += 1
    with pytest.raises(AssertionError, match="counts 2 holders and has 1"):
        pool.check()


texts = st.lists(st.sampled_from([0, 0, 0, 0, 1]), min_size=1, max_size=70)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(texts, st.integers(0, 9)), max_size=40), st.integers(5, 14))
def test_pages_are_conserved_and_hits_have_their_content(operations, size):
    """Texts come (a list) and go (a number) in any order; what a page holds is noted beside the pool."""
    pool = PrefixPool(size)
    content: dict[int, tuple[int, ...]] = {}  # page -> the whole text up to its end
    live: list[int] = []
    for serial, operation in enumerate(operations):
        if isinstance(operation, int):
            if live:
                pool.release(live.pop(operation % len(live)))
        else:
            match = pool.match(operation, SPACE)
            assert match.rows < len(operation)
            for index, node in enumerate(match.nodes):
                assert content[node.page] == tuple(operation[: 16 * index + 16])
            if match.tail:
                assert content[match.tail.page][: match.rows] == tuple(operation[: match.rows])
            need = -(-len(operation) // 16) - match.live
            if need + (match.tail is not None and match.tail.refs == 0) > pool.available:
                continue
            fill(pool, serial, operation)
            live.append(serial)
            for index, page in enumerate(pool.pages_of(serial)):
                if index >= len(match.nodes) and 16 * index + 16 <= len(operation):
                    content[page] = tuple(operation[: 16 * index + 16])
        pool.check()
        assert pool.free + pool.cached + pool.used == size
    for serial in live:
        pool.release(serial)
    pool.clear()
    assert pool.free == size
