"""The engine over a real model: every request as alone, in every company, through every door."""

import asyncio
import random
import threading
import time

import numpy as np
import pytest

from crucible.engine.engine import Engine
from crucible.engine.events import EngineStopped, QueueFull, RequestError, Result, Token
from crucible.engine.request import Request
from crucible.engine.runner import ModelRunner
from crucible.engine.scheduler import Limits
from crucible.model.generate import generate
from crucible.sampling.philox import uniform
from crucible.sampling.sample import logprobs

WAIT = 120  # seconds after which a test gives up on a thread


def solo(model, request: Request):
    """The judge: the model's own generation of the request."""
    return generate(
        model,
        request.prompt,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=request.seed,
        sampler=request.sampler,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
    )


def same(result: Result, judge, count: int | None = None) -> None:
    """The result is the judge's, or its first `count` tokens where the request was cancelled."""
    count = len(judge.tokens) if count is None else count
    assert result.tokens == judge.tokens[:count]
    assert result.logits_digests in (None, judge.logits_digests[:count])
    if result.finish_reason != "cancelled":
        assert (result.text, result.finish_reason) == (judge.text, judge.finish_reason)
        assert result.random_state == judge.random_state
        assert (result.k_digest, result.v_digest) in ((None, None), (judge.k_digest, judge.v_digest))


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
def test_every_request_returns_the_bits_of_its_run_alone(make_model, mode, limits, options):
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


def test_stop_strings_end_the_text_across_token_borders(model):
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


def test_a_stop_token_ends_the_text_and_is_kept_in_the_tokens(model):
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


def test_async_streams_run_beside_each_other_and_leaving_one_cancels_it(model):
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


def test_many_threads_may_submit_and_cancel(model):
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


class Gate(ModelRunner):
    """A runner that waits for the test before each pass, and can be told to fail."""

    def __init__(self, *args):
        super().__init__(*args)
        self.entered, self.open, self.fault = threading.Semaphore(0), threading.Semaphore(0), None

    def run(self, parts):
        self.entered.release()
        assert self.open.acquire(timeout=WAIT)
        outcomes = super().run(parts)
        if self.fault is not None:
            raise self.fault
        return outcomes


def test_a_full_queue_refuses_and_a_list_waits_for_room(model):
    runner = Gate(model, 16, 1)
    with Engine(model, Limits(queue=2, pages=16, decode_batch=1), runner=runner) as engine:
        handles = [engine.submit("a", max_tokens=1)]
        runner.entered.acquire(timeout=WAIT)
        handles += [engine.submit("b", max_tokens=1) for _ in range(2)]
        with pytest.raises(QueueFull, match="2 requests wait already"):
            engine.submit("c")
        runner.open.release(100)
        assert all(handle.result(WAIT) for handle in handles)
        assert len(engine.generate(["x"] * 9, max_tokens=2, ignore_eos=True)) == 9


def test_idle_moments_are_used_until_nothing_is_left_to_prepare(model):
    class Preparing(ModelRunner):
        left, ran = 3, 0

        def run(self, parts):
            self.ran += 1
            return super().run(parts)

        def prepare(self):
            assert not engine._loop.busy, "something runs"
            self.left -= 1
            prepared.release()
            return self.left > 0

    prepared, runner = threading.Semaphore(0), Preparing(model, 16, 1)
    with Engine(model, Limits(pages=16, decode_batch=1), runner=runner) as engine:
        for _ in range(3):
            assert prepared.acquire(timeout=WAIT)
        (first,) = engine.generate(["a"], max_tokens=5, seed=4, ignore_eos=True)
        assert prepared.acquire(timeout=WAIT), "after work there may be more"
        assert engine.generate(["a"], max_tokens=5, seed=4, ignore_eos=True)[0].tokens == first.tokens
    assert runner.ran


def test_lots_come_between_the_same_two_steps_and_each_is_taken_whole_or_refused(model):
    runner = Gate(model, 16, 4)
    ended, over = {}, threading.Event()

    def listen(news):
        ended.update((key, event) for key, event in news if not isinstance(event, Token))
        if len(ended) == 3:
            over.set()

    with Engine(model, Limits(queue=3, pages=16, decode_batch=4), runner=runner) as engine:
        work = [(key, engine.check("a", max_tokens=1, ignore_eos=True)) for key in range(7)]
        made = engine.submit_lots([work[:2], work[2:4], work[4:5], work[5:]], listen)
        assert [type(one) for one in made] == [list, QueueFull, list, QueueFull]
        assert [len(made[0]), len(made[2])] == [2, 1] and "2 requests wait already" in str(made[1])
        runner.open.release(1)
        assert over.wait(WAIT), "one step is enough for all that were taken"
    assert sorted(ended) == [0, 1, 4] and all(isinstance(one, Result) for one in ended.values())


def test_a_device_error_hands_out_nothing_of_its_step_and_stops_the_engine(model):
    runner = Gate(model, 16, 4)
    engine = Engine(model, Limits(pages=16, decode_batch=4), runner=runner)
    handles = [engine.submit("hello", max_tokens=9, ignore_eos=True) for _ in range(2)]
    runner.open.release(2)
    for _ in range(3):  # inside the third pass
        runner.entered.acquire(timeout=WAIT)
    for handle in handles:
        next(iter(handle))
    runner.fault = OSError("the device fell off the bus")
    runner.open.release(1)
    judge = solo(model, Request("hello", max_tokens=9, ignore_eos=True))
    for handle in handles:
        tokens = []
        with pytest.raises(EngineStopped, match="the device fell off the bus"):
            for event in handle:
                tokens.append(event.token)
        assert len(tokens) <= 2 and tokens == judge.tokens[1 : 1 + len(tokens)]
    with pytest.raises(EngineStopped, match="fell off"):
        engine.submit("again")
    assert "fell off" in engine.stats().failure
    engine.close()


def test_a_listener_that_raises_stops_the_engine_and_keeps_no_news_from_the_others(model):
    runner = Gate(model, 16, 4)
    engine = Engine(model, Limits(pages=16, decode_batch=4), runner=runner)
    heard: list = []

    def deaf(news):
        raise ValueError("no\nears")

    work = {end: engine.check("a", max_tokens=end, ignore_eos=True) for end in (1, 9)}
    engine.submit("a", max_tokens=1)
    runner.entered.acquire(timeout=WAIT)  # those that follow start in one step
    engine.submit_lots([[("deaf", work[9])]], deaf)
    engine.submit_lots([[("short", work[1]), ("long", work[9])]], heard.extend)
    runner.open.release(100)
    assert engine.join() == "ValueError: no ears"
    ends = {key: event for key, event in heard if not isinstance(event, Token)}
    assert isinstance(ends["long"], EngineStopped) and isinstance(ends["short"], Result)


def test_a_failing_request_leaves_the_engine_and_its_neighbours_alone(model):
    class Poisoned(ModelRunner):
        def _choose(self, logits, sampling):
            if sampling.params.seed == 13 and sampling.draw == 3:
                logits = np.full_like(logits, np.nan)
            return super()._choose(logits, sampling)

    runner = Poisoned(model, 32, 8)
    work = [Request("abc", 10, temperature=1.0, seed=seed, ignore_eos=True) for seed in (12, 13, 14)]
    with Engine(model, Limits(pages=32, decode_batch=8), runner=runner) as engine:
        with pytest.raises(RequestError, match="failed at token 3: the logits hold a NaN") as failed:
            engine.generate(work)
        good, bad, also_good = failed.value.results
        assert bad is None
        same(good, solo(model, work[0]))
        same(also_good, solo(model, work[2]))
        same(engine.submit(work[0]).result(WAIT), solo(model, work[0]))
        assert engine.stats().totals.failed == 1 and engine.stats().pages_used == 0


def test_a_handle_of_another_engine_cancels_nothing_here(model):
    runner = Gate(model, 16, 4)
    with (
        Engine(model, Limits(pages=16, decode_batch=4), runner=runner) as engine,
        Engine(model, Limits(pages=16)) as other,
    ):
        mine, foreign = (e.submit("hello", max_tokens=3, ignore_eos=True) for e in (engine, other))
        assert mine.id == foreign.id
        engine.cancel(foreign)
        runner.open.release(10)
        assert mine.result(WAIT).finish_reason == "length"


def test_closing_cancels_what_is_left_and_takes_its_pages_back(model):
    runner = Gate(model, 16, 1)
    engine = Engine(model, Limits(pages=16, decode_batch=1), runner=runner)
    handles = [engine.submit("hello", max_tokens=50, ignore_eos=True) for _ in range(2)]
    runner.open.release(4)
    next(iter(handles[0]))
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine._stopping:  # until then the passes wait, or all of them might run before the end
        time.sleep(0.001)
    runner.open.release(100)
    closing.join(WAIT)
    assert [handle.result(WAIT).finish_reason for handle in handles] == ["cancelled"] * 2
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.pages_used, stats.totals.cancelled) == (0, 0, 0, 2)
    assert stats.totals.submitted == 2 and stats.failure is None


def test_waiting_for_a_result_may_be_given_up(model):
    runner = Gate(model, 16, 4)
    with Engine(model, Limits(pages=16, decode_batch=4), runner=runner) as engine:
        handle = engine.submit("hello", max_tokens=2, ignore_eos=True)
        with pytest.raises(TimeoutError, match="goes on"):
            handle.result(0.01)
        runner.open.release(10)
        assert len(handle.result(WAIT).tokens) == 2
