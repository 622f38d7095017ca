"""The model by its CUDA sources: the bits of the cpu device packed, alone, in chunks, eager and replayed."""

import functools

import numpy as np
import pytest

from crucible.attention.variants import Preferred
from crucible.errors import InputError, UnsupportedError
from crucible.kv.slices import Slice
from crucible.model import topology
from crucible.model.decoding import Decoding
from crucible.model.graphs import LIMITS
from crucible.numerics.bits import assert_same_bits, same_bits
from crucible.sampling.params import SamplingParams

GEOMETRIES = {
    "llama-g2-d64": {"heads": 2, "kv_heads": 1, "head_dim": 64},
    "qwen3-g2-d128": {
        "architecture": "qwen3",
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 128,
        "qk_norm": True,
        "tied": False,
    },
    "qwen2-g1-d32": {"architecture": "qwen2", "biases": frozenset(("attn_q", "attn_k", "attn_v"))},
}
LENGTHS = (19, 1, 34)
IDS = np.random.default_rng(3).integers(0, 300, 400).tolist()
PARAMS = (SamplingParams(), SamplingParams(0.9, 40, 0.8, 5), SamplingParams(0.7, 0, 1.0, 6, "gumbel-id"))


@pytest.fixture(params=["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def on(request) -> str:
    """The devices that run the CUDA sources."""
    return request.param


def prompts(seed: int = 0) -> list[list[int]]:
    return [IDS[seed + 40 * i :][:n] for i, n in enumerate(LENGTHS)]


def packed_prompts() -> list[int]:
    return [token for prompt in prompts() for token in prompt]


def slices_of(starts, lengths, order=None) -> list[Slice]:
    each = [Slice(r, s, n) for r, (s, n) in enumerate(zip(starts, lengths, strict=True))]
    return [each[r] for r in order] if order else each


def new_cache(model, page_seed: int, positions: int = 80):
    cache = model.new_cache(24, 3, page_seed=page_seed)
    for request in range(3):
        cache.reserve(request, positions)
    return cache


def host(model, array) -> np.ndarray:
    return np.array(model.device.download(array))


def story(model, page_seed: int, how: str) -> list[np.ndarray]:
    """Logits of three prompts and of three steps after them, then their K and V."""
    cache, run = new_cache(model, page_seed), model.transformer.forward
    each, found = prompts(), []
    if how == "chunked":
        firsts = [n // 2 for n in LENGTHS]
        for request, first in enumerate(firsts):
            if first:
                run(each[request][:first], [Slice(request, 0, first)], cache, rows=())
        rest = [token for p, first in zip(each, firsts, strict=True) for token in p[first:]]
        lengths = [n - first for n, first in zip(LENGTHS, firsts, strict=True)]
        logits = run(rest, slices_of(firsts, lengths), cache)
    else:
        logits = run(packed_prompts(), slices_of((0, 0, 0), LENGTHS), cache, packed=how == "packed")
    found.append(host(model, logits))
    for n in range(3):
        steps = slices_of([length + n for length in LENGTHS], (1, 1, 1))
        logits = run(IDS[n : n + 3], steps, cache, packed=how != "alone")
        found.append(host(model, logits))
    for request, length in enumerate(LENGTHS):
        found += cache.read(request, length + 3)
    return found


def assert_all_same(expected, actual, what: str) -> None:
    for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
        assert_same_bits(a, b, f"{what}, array {i}")


@pytest.mark.parametrize("mode", ["f32", "int8"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_packed_alone_and_chunked_have_the_bits_of_the_cpu(make_tiny, on, name, mode):
    expected = story(make_tiny(mode, **GEOMETRIES[name]), 1, "packed")
    model = make_tiny(mode, on=on, **GEOMETRIES[name])
    for seed, how in enumerate(("packed", "alone", "chunked")):
        assert_all_same(expected, story(model, seed, how), f"{how} on {on}")


def test_a_trace_takes_the_fused_steps_apart_and_moves_no_bit(make_tiny, on):
    for mode in ("f32", "int8"):
        seen = []
        for where in ("cpu", on):
            model = make_tiny(mode, on=where, **GEOMETRIES["qwen3-g2-d128"])
            cache, found = new_cache(model, 2), []

            def trace(name, layer, array, model=model, found=found):
                found.append((name, layer, host(model, array)))

            ids, parts = packed_prompts(), slices_of((0, 0, 0), LENGTHS)
            logits = model.transformer.forward(ids, parts, cache, trace=trace)
            again = model.transformer.forward(ids, parts, cache)
            assert_same_bits(host(model, logits), host(model, again), "traced and not")
            seen.append(found)
        names = [[(name, layer) for name, layer, _ in one] for one in seen]
        assert names[0] == names[1] and len(names[0]) == 3 + 12 * 2
        for (name, layer, a), (_, _, b) in zip(*seen, strict=True):
            assert_same_bits(a, b, f"{name} of layer {layer}")


def replayed(model, kind: str, graph: bool) -> list[np.ndarray]:
    """Logits of three batches of one topology with different ids, pages, positions and order."""
    found, run = [], model.transformer.forward
    cache = new_cache(model, 4)
    for request in range(3):
        run(IDS[request : request + 34], [Slice(request, 0, 34)], cache, rows=(), graph=False)
    for turn in range(3):
        if kind == "single":
            ids, parts = IDS[turn : turn + 17], [Slice(turn, turn, 17)]
        elif kind == "packed":
            order = [(turn + i) % 3 for i in range(3)]
            ids = IDS[7 * turn : 7 * turn + 23]
            parts = [Slice(i, 34 - turn, (5, 9, 9)[i]) for i in order]
        else:
            ids, parts = IDS[turn : turn + 2], [Slice(2, 34 + turn, 1), Slice(0, 34 + turn, 1)]
        found.append(host(model, run(ids, parts, cache, graph=graph)))
        if turn == 1 and kind == "single":  # pages that go and come back elsewhere
            cache.release(2)
            cache.release(0)
            cache.reserve(2, 40)
            run(IDS[2:36], [Slice(2, 0, 34)], cache, rows=(), graph=False)
    return found


@pytest.mark.parametrize("kind", ["single", "packed", "decode"])
def test_a_replay_has_the_bits_of_eager_whatever_the_data(make_tiny, on, kind, monkeypatch):
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    cpu = make_tiny("f32", **GEOMETRIES["llama-g2-d64"])
    expected = replayed(cpu, kind, True)
    assert_all_same(expected, replayed(model, kind, False), "eager")
    caches, kept = [], type(model).new_cache
    monkeypatch.setattr(type(model), "new_cache", lambda *a, **k: caches.append(kept(*a, **k)) or caches[-1])
    assert_all_same(expected, replayed(model, kind, True), "replayed")
    statistics = model.transformer.captures(caches[0]).statistics[kind]
    assert (statistics.captures, statistics.hits) == (1, 1) and statistics.capture_seconds > 0


def test_a_replay_without_its_data_is_caught(make_tiny, on, monkeypatch):
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    expected = replayed(model, "packed", False)
    sent, send = [], model.transformer.runner.staging.send
    # Three histories, an eager batch and a captured one are sent; the replay gets stale data.
    monkeypatch.setattr(
        model.transformer.runner.staging, "send", lambda *a: sent.append(1) or (len(sent) < 6 and send(*a))
    )
    found = replayed(model, "packed", True)
    assert_all_same(expected[:2], found[:2], "with data")
    assert not same_bits(expected[2], found[2])


def test_a_step_sends_once_and_allocates_nothing_once_warm(make_tiny, on, monkeypatch):
    model = make_tiny("int8", on=on, **GEOMETRIES["llama-g2-d64"])
    cache, device = new_cache(model, 5), model.device
    run, parts = model.transformer.choose, slices_of((0, 0, 0), LENGTHS)

    def step(graph: bool) -> None:
        run(packed_prompts(), parts, cache, PARAMS, [0, 1, 2], graph=graph)

    for graph in (False, True, True):
        step(graph)
    counts = {"empty": 0, "upload": 0, "copy_in": 0, "copy_out": 0}
    for name in counts:
        kept = getattr(device, name)

        def counted(*a, name=name, kept=kept, **k):
            counts[name] += 1
            return kept(*a, **k)

        monkeypatch.setattr(device, name, counted)
    for graph in (False, True):
        step(graph)
        assert counts == {"empty": 0, "upload": 0, "copy_in": 1, "copy_out": 1}
        timing, scratch = model.transformer.timing, model.transformer.runner.scratch
        assert timing.uploads == 1 and timing.upload_bytes > 0 and timing.prepare_seconds > 0
        assert timing.path == ("graph" if graph else "eager")
        assert scratch.bytes >= scratch.high_water > 0
        counts.update(dict.fromkeys(counts, 0))


@pytest.mark.parametrize("graphs", [True, False])
def test_steps_ahead_of_the_host_choose_the_same_tokens(make_tiny, on, graphs):
    results = []
    for where in ("cpu", on):
        model = make_tiny("f32", on=where, **GEOMETRIES["llama-g2-d64"])
        cache, transformer = new_cache(model, 6, 90), model.transformer
        transformer.forward(packed_prompts(), slices_of((0, 0, 0), LENGTHS), cache)
        transformer.graphs = graphs
        decoding = Decoding(transformer, cache, [2, 0, 1], [4, 5, 6], PARAMS, [0, 3, 1])
        found, steps = [], 40  # from 34 positions over 64, where the capacity changes
        while len(found) < steps:
            while decoding.pending < 3 and decoding.runs_ahead and decoding.pending + len(found) < steps:
                decoding.enqueue()
            found.append(decoding.collect())
        transformer.graphs = True
        results.append((found, [cache.read(r, n + steps) for r, n in enumerate(LENGTHS)]))
    (tokens, kv), (other_tokens, other_kv) = results
    assert tokens == other_tokens and len({s.token for step in tokens for s in step}) > 5
    for pair, other in zip(kv, other_kv, strict=True):
        assert_all_same(pair, other, "K and V")


def test_decodes_that_take_turns_do_not_disturb_each_other(make_tiny, on):
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    found = []
    for together in (False, True):
        cache, transformer = new_cache(model, 10), model.transformer
        transformer.forward(packed_prompts(), slices_of((0, 0, 0), LENGTHS), cache)
        two = [Decoding(transformer, cache, [r], [4 + r], PARAMS[1:2], [r]) for r in (0, 2)]
        made = [[], []]
        for _ in range(5 if together else 1):
            for decoding, tokens in zip(two, made, strict=True):
                for _ in range(1 if together else 5):
                    decoding.enqueue()
                    tokens += decoding.collect()
        found.append(made)
        cache.release(0)
        with pytest.raises(InputError):
            two[0].enqueue()
    assert found[0] == found[1]


def test_another_variant_drops_what_was_captured(make_tiny, on):
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    cache = new_cache(model, 7)
    graphs = model.transformer.captures(cache)
    found = []
    for variant in ("auto", "auto", "exact-q2-k32-hybrid", "exact-q2-k32-hybrid", "auto"):
        found.append(host(model, model.transformer.forward([9], [Slice(1, 0, 1)], cache, variant=variant)))
        (launch,) = model.transformer.launches
        assert launch.asked == variant
    for one in found[1:]:
        assert_same_bits(found[0], one, "variants")
    assert graphs.statistics["decode"].invalidations == 2 and len(graphs) == 0


def test_stores_of_captures_are_bounded(make_tiny, on, monkeypatch):
    monkeypatch.setitem(LIMITS, "single", 2)
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    cache = new_cache(model, 8)
    graphs = model.transformer.captures(cache)
    for length in (2, 3, 4, 2):
        for _ in range(2):
            model.transformer.forward(IDS[:length], [Slice(0, 0, length)], cache)
    statistics = graphs.statistics["single"]
    assert len(graphs) == 2 and statistics.captures == 4 and statistics.evictions == 2
    assert 0 <= statistics.hit_rate < 0.5


def test_a_topology_is_captured_once_it_outlasts_the_patience(make_tiny, on):
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    cache = new_cache(model, 8)
    graphs = model.transformer.captures(cache)
    graphs.patience = {"single": 3, "decode": 1, "packed": 1}
    found, paths = [], []
    for _ in range(5):
        found.append(host(model, model.transformer.forward(IDS[:5], [Slice(0, 0, 5)], cache)))
        paths.append(model.transformer.timing.path)
    assert paths == ["eager"] * 3 + ["captured", "graph"]
    for one in found[1:]:
        assert_same_bits(found[0], one, "passes")


def test_an_idle_moment_captures_what_ran_and_its_replay_has_the_eager_bits(make_tiny, on):
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    cache = new_cache(model, 8)
    graphs = model.transformer.captures(cache)
    graphs.patience = dict.fromkeys(LIMITS, 99)
    forward, capture_wish = (
        model.transformer.forward,
        functools.partial(model.transformer.capture_wish, cache),
    )
    steps = {
        "single": (IDS[:5], [Slice(0, 0, 5)]),
        "packed": (IDS[:9], [Slice(0, 0, 5), Slice(1, 0, 4)]),
        "decode": (IDS[:2], [Slice(0, 5, 1), Slice(1, 4, 1)]),
    }
    for kind, step in steps.items():
        eager = host(model, forward(*step, cache))
        assert capture_wish() == (kind == "decode"), "what ran once hardly comes again, but a decode step"
        assert_same_bits(eager, host(model, forward(*step, cache)), "passes")
        assert capture_wish() == (kind != "decode") and not capture_wish()
        assert graphs.statistics[kind].captures == 1
        assert_same_bits(eager, host(model, forward(*step, cache)), "passes")
        assert model.transformer.timing.path == "graph"


def test_a_wish_of_another_variant_is_forgotten(make_tiny, on):
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    cache = new_cache(model, 8)
    model.transformer.captures(cache).patience = dict.fromkeys(LIMITS, 99)
    for variant in ("reference", "reference", "exact"):
        model.transformer.forward(IDS[:5], [Slice(0, 0, 5)], cache, variant=variant)
    assert not model.transformer.capture_wish(cache)


@pytest.mark.parametrize("end, variant", [(65, "fast-rows"), (120, "fast-rows"), (129, "reference")])
def test_a_decode_step_is_run_by_a_variant_that_covers_its_histories_and_not_their_bucket(
    make_tiny, on, monkeypatch, end, variant
):
    monkeypatch.setattr(topology, "decode_capacity", lambda end: 256)
    model = make_tiny("f32", on=on, **{**GEOMETRIES["llama-g2-d64"], "context": 256})
    cache = model.new_cache(12, 1, page_seed=9)
    cache.reserve(0, 136)
    ids = np.resize(IDS, end - 1)
    model.transformer.forward(ids, [Slice(0, 0, end - 1)], cache, rows=(), variant="reference")
    found = [
        host(model, model.transformer.forward([5], [Slice(0, end - 1, 1)], cache, variant=one))
        for one in (Preferred("fast-rows"), "reference")
    ]
    assert_same_bits(found[0], found[1], "variants")
    model.transformer.forward([5], [Slice(0, end - 1, 1)], cache, variant=Preferred("fast-rows"))
    (launch,) = model.transformer.launches
    assert (launch.variant, launch.asked) == (variant, "fast-rows")
    assert bool(launch.reason) == (variant == "reference")
    if variant == "reference":
        with pytest.raises(UnsupportedError, match="128 positions"):
            model.transformer.forward([5], [Slice(0, end - 1, 1)], cache, variant="fast-rows")


def test_logits_and_calls_outside_the_rules_are_refused(make_tiny, on):
    model = make_tiny("f32", on=on, **GEOMETRIES["llama-g2-d64"])
    cache = new_cache(model, 9)
    with pytest.raises(InputError, match="300"):
        model.transformer.forward([300], [Slice(0, 0, 1)], cache)
    with pytest.raises(InputError, match="draw numbers"):
        model.transformer.choose([3], [Slice(0, 0, 1)], cache, PARAMS, [0, 0, 0])
    with pytest.raises(InputError, match="overflows"):
        model.transformer.choose([3], [Slice(0, 0, 1)], cache, [SamplingParams(1e-44, seed=1)], [0])
    with pytest.raises(InputError, match="no step"):
        Decoding(model.transformer, cache, [0], [1], PARAMS[:1], [0]).collect()
