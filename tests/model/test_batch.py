"""Several requests at once choose the tokens that each chooses alone, on every device."""

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.kv.pool import PoolExhausted
from crucible.kv.slices import Slice
from crucible.model.batch import generate_batch, packed_parts
from crucible.model.decoding import Decoding
from crucible.model.generate import generate
from crucible.numerics.bits import same_bits
from crucible.sampling.params import SamplingParams

IDS = np.random.default_rng(1).integers(0, 300, 120).tolist()
PROMPTS = [IDS[:30], IDS[30:31], IDS[40:90], IDS[100:117]]
PARAMS = [
    SamplingParams(),
    SamplingParams(0.8, 20, 0.9, 3),
    SamplingParams(1.1, 0, 1.0, 4, "gumbel-id"),
    SamplingParams(0.5, 7, 1.0, 9),
]


@pytest.mark.parametrize("on", ["cpu", "simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_batch_chooses_what_each_request_chooses_alone(make_tiny, on):
    alone = [
        generate(
            make_tiny(heads=2, head_dim=64),
            prompt,
            max_tokens=12,
            temperature=float(p.temperature),
            top_k=p.top_k,
            top_p=p.top_p,
            seed=p.seed,
            sampler=p.sampler,
            ignore_eos=True,
            digests=False,
        ).tokens
        for prompt, p in zip(PROMPTS, PARAMS, strict=True)
    ]
    model = make_tiny(on=on, heads=2, head_dim=64)
    cache = model.new_cache(40, 4, page_seed=3)
    for rows, ahead in ((37, 0), (1024, 2)):
        assert generate_batch(model, PROMPTS, PARAMS, 12, cache=cache, rows=rows, ahead=ahead) == alone
    stop = alone[1][3]
    found = generate_batch(model, PROMPTS, PARAMS, 12, stops=[stop], cache=cache, ahead=2)
    for tokens, whole in zip(found, alone, strict=True):
        assert tokens == whole[: len(tokens)]
        assert tokens[-1] == stop or len(tokens) == 12
        assert stop not in tokens[:-1]
    assert len(found[1]) < 12 and cache.pages.used == 0


def test_prompts_are_cut_into_calls_within_their_bounds():
    calls = list(packed_parts([30, 1, 50, 17], rows=37, segments=2))
    for call in calls:
        assert sum(part.length for part in call) <= 37 and len(call) <= 2
    for request, length in enumerate((30, 1, 50, 17)):
        parts = [part for call in calls for part in call if part.request == request]
        assert [part.start for part in parts] == [sum(p.length for p in parts[:i]) for i in range(len(parts))]
        assert sum(part.length for part in parts) == length
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_batch_that_breaks_a_rule_is_refused(make_tiny):
    model = make_tiny()
    with pytest.raises(InputError, match="prompt 1 is empty"):
        generate_batch(model, [[1], []], PARAMS[:2], 4)
    with pytest.raises(InputError, match="2 prompts have 1"):
        generate_batch(model, [[1], [2]], PARAMS[:1], 4)
    with pytest.raises(InputError, match="max_tokens"):
        generate_batch(model, [[1]], PARAMS[:1], 0)


def test_the_first_error_of_a_batch_comes_out_and_all_it_reserved_is_given_back(make_tiny):
    model, short = make_tiny(), make_tiny().new_cache(8, 3)
    with pytest.raises(InputError, match=r"^140 positions do not fit the context of 128$"):
        generate_batch(model, [[1], [2] * 100, [3]], PARAMS[:3], 40, cache=model.new_cache(40, 3))
    for prompts in ([[1] * 60, [2] * 60, [3]], [[1], [2] * 100, [3]]):
        with pytest.raises(PoolExhausted, match=r"pages asked for, \d of 8 free"):
            generate_batch(model, prompts, PARAMS[:3], 10, cache=short)
        assert short.pages.used == 0 and (short.tables.array == -1).all()
    cold = SamplingParams(1e-44, seed=1)
    with pytest.raises(InputError, match="overflows"):
        generate_batch(model, [[1], [2]], [SamplingParams(), cold], 10, cache=short)
    assert short.pages.used == 0
    assert generate_batch(model, [[1]], PARAMS[:1], 10, cache=short)


@pytest.mark.parametrize("row", [0, 1])
def test_a_batch_leaves_a_cache_in_use_as_it_was(make_tiny, row):
    model = make_tiny()
    cache = model.new_cache(12, 3)
    cache.reserve(row, 20)
    model.transformer.forward(IDS[:20], [Slice(row, 0, 20)], cache, rows=())
    before, pages = cache.read(row, 20), cache.pages.pages_of(row)
    with pytest.raises(InputError, match=rf"request {row} of the cache holds 2 pages already"):
        generate_batch(model, PROMPTS[:2], PARAMS[:2], 4, cache=cache)
    assert cache.pages.pages_of(row) == pages and cache.pages.used == 2 and cache.stored[row] == 20
    assert all(same_bits(a, b) for a, b in zip(before, cache.read(row, 20), strict=True))


def test_a_batch_may_use_the_rows_before_one_in_use(make_tiny):
    model = make_tiny()
    cache = model.new_cache(12, 3)
    pages = cache.reserve(2, 20)
    expected = generate_batch(model, PROMPTS[:2], PARAMS[:2], 4)
    assert generate_batch(model, PROMPTS[:2], PARAMS[:2], 4, cache=cache) == expected
    assert cache.pages.pages_of(2) == pages and cache.pages.used == len(pages)


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"prompts": None}, "prompts must be a list, got NoneType"),
        ({"prompts": "text"}, "prompts must be a list, got str"),
        ({"params": None}, "params must be a list, got NoneType"),
        ({"params": [3]}, "params holds int; each must be SamplingParams"),
        ({"stops": None}, "token ids must be a flat list of integers, got NoneType"),
        ({"stops": [1.5]}, "token ids must be a flat list of integers, got float64 [1]"),
        ({"stops": [300]}, "token id 300 at position 0 is outside the vocabulary of 300"),
        ({"segments": 0}, "segments 0 must be at least 1"),
        ({"segments": -3}, "segments -3 must be at least 1"),
        ({"segments": "x"}, "segments 'x' must be a whole number"),
        ({"cache": 3}, "cache is int; pass one that the model's new_cache made"),
    ],
)
def test_every_argument_of_a_batch_is_refused_with_a_sentence(make_tiny, changes, sentence):
    good = {"prompts": [[1]], "params": PARAMS[:1], "max_tokens": 4}
    with pytest.raises(InputError) as refused:
        generate_batch(make_tiny(), **{**good, **changes})
    assert str(refused.value) == sentence


def test_arguments_of_a_pass_are_refused_before_anything_is_stored(make_tiny):
    model = make_tiny()
    cache = model.new_cache(4)
    cache.reserve(0, 10)
    transformer, slices = model.transformer, [Slice(0, 0, 1)]
    draws, generator = [0], (p for p in PARAMS)
    for call, sentence in (
        (lambda: transformer.forward([1], slices, None), "cache is NoneType"),
        (lambda: transformer.forward([1], slices, cache, trace=3), "trace is int; it must be a function"),
        (lambda: transformer.choose([1], slices, cache, None, draws), "params must be a list, got NoneType"),
        (lambda: transformer.choose([1], slices, cache, generator, draws), "params must be a list, got gen"),
        (lambda: transformer.choose([1], slices, cache, [3], draws), "params holds int"),
        (lambda: transformer.choose([1], slices, cache, PARAMS[:1], None), "draws must be a list"),
        (lambda: transformer.choose([1], slices, cache, PARAMS[:1], [1 << 32]), "draw number 4294967296"),
        (lambda: Decoding(transformer, cache, [9], [0.5], None, [-1]), "params must be a list"),
        (lambda: Decoding(transformer, cache, [9], [0.5], PARAMS[:1], [-1]), "token ids must be a flat list"),
        (lambda: Decoding(transformer, cache, [9], [5], PARAMS[:1], [-1]), "request 9 is outside"),
        (lambda: Decoding(transformer, cache, [0], [5], PARAMS[:1], [-1]), "draw number -1 must fit 32 bits"),
        (lambda: Decoding(transformer, None, [0], [5], PARAMS[:1], [0]), "cache is NoneType"),
    ):
        with pytest.raises(InputError, match=f"^{sentence}"):
            call()
    assert cache.stored == [0]


@pytest.mark.parametrize("on", ["cpu", "simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_decode_ends_at_the_last_draw_number_on_every_device(make_tiny, on):
    model = make_tiny(on=on, heads=2, head_dim=64)
    cache, last, made = model.new_cache(4, 2), (1 << 32) - 1, []
    for request in (0, 1):
        cache.reserve(request, 30)
    model.transformer.forward([1, 2], [Slice(0, 0, 1), Slice(1, 0, 1)], cache)
    decoding = Decoding(model.transformer, cache, [0, 1], [4, 5], PARAMS[1:3], [0, last - 4])
    with pytest.raises(InputError) as refused:
        while True:
            while decoding.pending < 3 and decoding.runs_ahead:
                decoding.enqueue()
            made.append(decoding.collect())
    assert str(refused.value) == "draw number 4294967296 must fit 32 bits: 0 to 4294967295"
    captures = model.transformer.captures(cache)
    assert on == "cpu" or captures.statistics["decode"].hits
    assert len(made) == 5 and cache.stored == [6, 6] and not decoding.pending
