"""The engine over a real model: every request as alone, in every company, through every door."""

import asyncio
import random
import threading

import numpy as np
import pytest

from crucible.engine.engine import Engine
from crucible.engine.events import Result, Token
from crucible.engine.request import Request
from crucible.engine.scheduler import Limits
from crucible.sampling.philox import uniform
from crucible.sampling.sample import logprobs

WAIT = 120  # seconds after which a test gives up on a thread


def requests(seed: int, count: int = 12, most: int = 30) -> list[Request]:
    """Requests of all kinds; many begin alike."""
    r = random.Random(seed)
    stem = [r.randrange(300) for _ in range(80)]
    made = []
    for _ in range(count):
        kept = r.choice([0, 0, 1, 15, 16, 17, 32, 48, 70])
        prompt = stem[:kept] + [r.randrange(300) for _ in range(r.randrange(1, 40))]
        greedy = r.random() < 0.3
        made.append(
            Request(
                prompt,
                max_tokens=r.randrange(1, most),
                temperature=0.0 if greedy else r.choice([0.5, 1.0, 1.7]),
                top_k=r.choice([0, 5, 40]),
                top_p=r.choice([1.0, 0.9]),
                seed=None if greedy else r.randrange(1 << 64),
                sampler=r.choice(["inverse-cdf", "gumbel-id"]),
                ignore_eos=True,
                digests=True,
                kv_digests=True,
            )
        )
    return made


CONFIGURATIONS = [
    ({}, {}),
    ({"prefill_budget": 7}, {"page_seed": 3}),
    ({"prefill_budget": 64, "chunk_cap": 5, "decode_batch": 3}, {"page_seed": 1}),
    ({"pages": 11, "prefill_budget": 40}, {"page_seed": 2}),
    ({"pages": 11, "chunk_cap": 16}, {"share_prefixes": False, "page_seed": 4}),
]


@pytest.mark.parametrize("mode", ["f32", "int8"])
@pytest.mark.parametrize(("limits", "options"), CONFIGURATIONS)
def test_every_request_returns_the_bits_of_its_run_alone(make_model, mode, limits, options, solo, same):
    model = make_model(mode)
    work = requests(len(limits) + 10 * len(options), most=60 if "pages" in limits else 30)
    with Engine(model, Limits(**{"pages": 64, **limits}), **options) as engine:
        for _ in range(2):  # the second time on top of what the first left in the cache
            for result, request in zip(engine.generate(work), work, strict=True):
                same(result, solo(model, request))
        stats = engine.stats()
    assert stats.pages_used == 0 and stats.totals.finished == 2 * len(work)
    assert (stats.saved_rows > 0) == options.get("share_prefixes", True)
    if limits.get("pages") == 11:
        assert stats.totals.preemptions > 0


def test_the_order_of_a_batch_changes_no_result(model):
    work = requests(5, 8)
    with Engine(model, Limits(pages=64)) as engine:
        forward = engine.generate(work)
        backward = engine.generate(work[::-1])[::-1]
    assert forward == backward


def test_asking_for_logprobs_or_digests_changes_no_token(model):
    plain = Request("tell me", max_tokens=20, temperature=1.2, seed=9, ignore_eos=True)
    with Engine(model, Limits(pages=64)) as engine:
        bare, full = engine.generate(
            [plain, Request(**{**vars(plain), "logprobs": 5, "digests": True, "kv_digests": True})]
        )
    assert bare.tokens == full.tokens and bare.logprobs is None and bare.logits_digests is None


def test_logprobs_are_those_of_the_contract(model):
    ids = model.encode("the likeliest")
    with Engine(model, Limits(pages=64)) as engine:
        result = engine.submit(ids, max_tokens=3, logprobs=4, ignore_eos=True).result(WAIT)
    cache = model.new_cache(4)
    cache.reserve(0, 40)
    from crucible.kv.slices import Slice

    logits = model.transformer.forward(ids, [Slice(0, 0, len(ids))], cache)[0]
    values = logprobs(model.device, logits)
    order = np.lexsort((np.arange(values.size), -values))[:4]
    first = result.logprobs[0]
    assert [(top.token, top.logprob) for top in first.top] == [(i, values[i]) for i in order]
    assert first.chosen == values[result.tokens[0]] == first.top[0].logprob
    assert len(result.logprobs) == 3


def test_a_seed_at_the_next_step_is_not_the_next_seed_at_this_step(model):
    draws = {(s, p): uniform(model.device, s, p) for s in range(20) for p in range(20)}
    assert all(draws[s, p + 1] != draws[s + 1, p] for s in range(19) for p in range(19))
    assert len(set(draws.values())) == len(draws)
    with Engine(model, Limits(pages=64)) as engine:
        a, b = engine.generate(
            [Request("x", 30, temperature=2.0, seed=seed, ignore_eos=True) for seed in (7, 8)]
        )
    assert a.tokens[1:] != b.tokens[:-1] and a.tokens != b.tokens


def test_a_drawn_seed_is_reported_and_gives_the_same_tokens_again(model):
    with Engine(model, Limits(pages=64)) as engine:
        first, other = engine.generate(["hello"] * 2, max_tokens=12, temperature=1.3)
        again = engine.submit("hello", max_tokens=12, temperature=1.3, seed=first.random_state.seed).result(
            WAIT
        )
    assert again == first and first.random_state.next_draw == len(first.tokens)
    assert other.random_state.seed != first.random_state.seed


def test_stop_strings_end_the_text_across_token_borders(model, solo):
    free = solo(model, Request("stop here", max_tokens=40, ignore_eos=True, temperature=1.0, seed=4))
    text = free.text
    at = next(
        i
        for i in range(5, len(text) - 3)
        if "\ufffd" not in text[i : i + 3] and text.find(text[i : i + 3]) == i
    )
    stop = text[at : at + 3]
    request = Request("stop here", 40, temperature=1.0, seed=4, ignore_eos=True, stop_strings=("never", stop))
    with Engine(model, Limits(pages=64)) as engine:
        handle = engine.submit(request)
        *tokens, result = handle
    assert result.text == text[:at] == "".join(token.text for token in tokens)
    assert (result.finish_reason, result.stopped_by) == ("stop", stop)
    assert result.tokens == free.tokens[: len(result.tokens)]
    assert stop in model.decode(result.tokens) and stop not in model.decode(result.tokens[:-1])


def test_a_stop_token_ends_the_text_and_is_kept_in_the_tokens(model, solo, same):
    free = solo(model, Request("stop", max_tokens=12, ignore_eos=True))
    request = Request(
        "stop", max_tokens=12, ignore_eos=True, stop=(free.tokens[5],), digests=True, kv_digests=True
    )
    with Engine(model, Limits(pages=64)) as engine:
        result = engine.submit(request).result(WAIT)
    same(result, solo(model, request))
    assert result.finish_reason == "stop" and result.stopped_by == result.tokens[-1] == free.tokens[5]


def test_iteration_gives_every_token_and_then_the_result(model):
    with Engine(model, Limits(pages=64)) as engine:
        handles = [
            engine.submit("hello", max_tokens=15, ignore_eos=True, seed=s, temperature=1.0) for s in range(3)
        ]
        for handle in handles:
            *tokens, result = handle
            assert all(isinstance(token, Token) for token in tokens) and isinstance(result, Result)
            assert [token.token for token in tokens] == result.tokens and handle.done
            assert [token.index for token in tokens] == list(range(15))
            assert "".join(token.text for token in tokens) == result.text


def test_async_streams_run_beside_each_other_and_leaving_one_cancels_it(model, solo):
    request = Request("hello", max_tokens=100, ignore_eos=True, temperature=1.0, seed=1)

    async def read(engine, most):
        seen = []
        stream = engine.stream(request)
        async for event in stream:
            seen.append(event)
            if len(seen) == most:
                await stream.aclose()
                break
        return seen

    async def both(engine):
        return await asyncio.wait_for(asyncio.gather(read(engine, 10**6), read(engine, 3)), WAIT)

    with Engine(model, Limits(pages=64)) as engine:
        whole, part = asyncio.run(both(engine))
        engine.submit("after", max_tokens=1).result(WAIT)
        assert engine.stats().pages_used == 0
    assert [event.token for event in whole[:-1]] == whole[-1].tokens == solo(model, request).tokens
    assert [event.token for event in part] == whole[-1].tokens[:3]


def test_many_threads_may_submit_and_cancel(model, solo, same):
    work = requests(77, 16)
    judges = [solo(model, request) for request in work]
    faults: list[BaseException] = []

    def client(engine, number):
        r = random.Random(number)
        try:
            for _ in range(6):
                index = r.randrange(len(work))
                handle = engine.submit(work[index])
                if r.random() < 0.4:
                    next(iter(handle))
                    handle.cancel()
                result = handle.result(WAIT)
                same(
                    result, judges[index], len(result.tokens) if result.finish_reason == "cancelled" else None
                )
        except BaseException as fault:
            faults.append(fault)

    with Engine(model, Limits(pages=20, prefill_budget=48), page_seed=5) as engine:
        threads = [threading.Thread(target=client, args=(engine, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert not faults and engine.stats().pages_used == 0
        engine._loop.pool.check()
