"""A cache hands out what its own request stored and nothing else; concurrent forwards keep every bit."""

import threading

import numpy as np
import pytest

from crucible.errors import InputError, UnavailableError
from crucible.kv.slices import Slice
from crucible.model.generate import generate
from crucible.model.transformer import Transformer
from crucible.numerics.bits import assert_same_bits


def test_threads_that_share_a_model_get_their_own_bits(make_tiny):
    model = make_tiny(context=256)
    prompts = [[(7 * i + 3 * j) % 300 for j in range(120)] for i in range(4)]
    options = {"max_tokens": 4, "ignore_eos": True}
    wanted = [generate(model, prompt, **options) for prompt in prompts]
    found: list = [[] for _ in prompts]

    def work(i):
        for _ in range(6):
            found[i].append(generate(model, prompts[i], **options))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, want in enumerate(wanted):
        assert len(found[i]) == 6
        for got in found[i]:
            assert (got.logits_digests, got.k_digest) == (want.logits_digests, want.k_digest)
            assert got.attention == want.attention


def test_a_result_is_the_callers_and_a_trace_cannot_call_forward(make_tiny):
    model = make_tiny()
    cache = model.new_cache(4)
    cache.reserve(0, 32)
    first = model.transformer.forward([5], [Slice(0, 0, 1)], cache)
    kept = first.copy()
    model.transformer.forward([9], [Slice(0, 1, 1)], cache)
    assert_same_bits(kept, first)

    def again(name, layer, array):
        model.transformer.forward([5], [Slice(0, 0, 1)], cache)

    with pytest.raises(InputError, match="trace"):
        model.transformer.forward([5], [Slice(0, 0, 1)], cache, trace=again)
    assert_same_bits(kept, model.transformer.forward([5], [Slice(0, 0, 1)], cache))


def test_a_recording_is_never_taken_for_another_transformers(make_tiny):
    a, b = make_tiny(seed=7), make_tiny(seed=8)

    def fresh():
        cache = a.new_cache(2)
        cache.reserve(0, 16)
        return cache

    wanted = b.transformer.forward([5], [Slice(0, 0, 1)], fresh())
    for _ in range(20):
        cache = fresh()
        dead = Transformer(a.device, a.config, a.transformer.weights)
        dead.forward([5], [Slice(0, 0, 1)], cache)
        name = id(dead)
        del dead
        others = [Transformer(a.device, a.config, b.transformer.weights) for _ in range(40)]
        for other in others:
            if id(other) == name:
                assert_same_bits(wanted, other.forward([5], [Slice(0, 0, 1)], cache))
        assert all(name not in key for key in cache.prepared)


def test_read_gives_stored_positions_only(make_tiny):
    model = make_tiny()
    cache = model.new_cache(4, max_requests=2)
    cache.reserve(0, 16)
    cache.reserve(1, 48)
    model.transformer.forward(list(range(40)), [Slice(1, 0, 40)], cache)
    assert cache.read(1, 40)[0].shape[1] == 40 and cache.read(0, 0)[0].shape[1] == 0
    for request, length in ((0, 1), (0, 32), (1, 41), (1, 48), (1, -1), (2, 1), (-1, 1), (1, 1.5), ("a", 1)):
        with pytest.raises(InputError):
            cache.read(request, length)
    cache.release(1)
    cache.reserve(1, 48)
    with pytest.raises(InputError, match="past the 0 positions of request 1"):
        cache.read(1, 1)


def test_a_history_that_was_never_written_is_refused(make_tiny):
    model = make_tiny()
    cache = model.new_cache(8, max_requests=2)
    cache.reserve(0, 64)
    cache.reserve(1, 64)
    forward = model.transformer.forward
    for slices in ([Slice(0, 20, 1)], [Slice(0, 0, 5), Slice(0, 6, 1)], [Slice(0, 0, 9), Slice(1, 9, 1)]):
        with pytest.raises(InputError, match="stored"):
            forward([1] * sum(s.length for s in slices), slices, cache)
        assert cache.stored == [0, 0]
    forward([1, 2, 3, 4], [Slice(0, 2, 2), Slice(0, 0, 2)], cache)
    forward([1], [Slice(0, 4, 1)], cache)
    with pytest.raises(InputError, match="stored 5"):
        forward([1], [Slice(0, 6, 1)], cache)
    assert cache.stored == [5, 0]


def test_a_refused_reserve_takes_nothing(make_tiny):
    cache = make_tiny().new_cache(4, max_requests=1)
    for request in (1, -1, 5, "a", 0.0):
        with pytest.raises(InputError):
            cache.reserve(request, 16)
    narrow = make_tiny(context=16).new_cache(4)
    with pytest.raises(InputError, match="context"):
        narrow.reserve(0, 17)
    for kept in (cache, narrow):
        assert (kept.pages.used, kept.pages.available) == (0, 4)
        kept.pages.check()
    for positions in (-1, 1.5, "a", None, True):
        with pytest.raises(InputError):
            cache.reserve(0, positions)


def test_pages_over_the_stride_of_a_table_are_not_taken(make_tiny):
    cache = make_tiny().new_cache(4)
    cache.tables.array = np.full((1, 2), -1, np.int32)
    with pytest.raises(InputError, match="3 pages exceed the 2"):
        cache.reserve(0, 48)
    assert cache.pages.used == 0


def test_a_cache_of_another_model_is_refused(make_tiny):
    cache = make_tiny(layers=2).new_cache(4)
    cache.reserve(0, 16)
    for other in (make_tiny(layers=1), make_tiny(layers=3), make_tiny(kv_heads=2)):
        with pytest.raises(InputError, match="use a cache of this model"):
            other.transformer.forward([1, 2], [Slice(0, 0, 2)], cache)


@pytest.mark.parametrize("rows", [[0.7], [-1], [2], "a", [[0], [1, 1]], [True], [[0]], 5])
def test_rows_outside_the_call_are_refused(make_tiny, rows):
    model = make_tiny()
    cache = model.new_cache(4)
    cache.reserve(0, 16)
    with pytest.raises(InputError, match="row"):
        model.transformer.forward([1, 2], [Slice(0, 0, 2)], cache, rows=rows)


@pytest.mark.parametrize("pages", [0, -1, 1.5, True, None, "a", 2**31, 10**12])
def test_a_cache_of_no_sensible_size_is_refused(make_tiny, pages):
    with pytest.raises((InputError, UnavailableError), match="pages"):
        make_tiny().new_cache(pages)
