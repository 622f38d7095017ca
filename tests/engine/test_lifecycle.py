"""An engine from its first request to its end: a full queue, idle moments, lots, failures, closing."""

import threading
import time

import numpy as np
import pytest

from crucible.engine.engine import Engine
from crucible.engine.events import EngineStopped, QueueFull, RequestError, Result, Token
from crucible.engine.request import Request
from crucible.engine.runner import ModelRunner
from crucible.engine.scheduler import Limits

WAIT = 120  # seconds after which a test gives up on a thread


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


def test_a_device_error_hands_out_nothing_of_its_step_and_stops_the_engine(model, solo):
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


def test_a_failing_request_leaves_the_engine_and_its_neighbours_alone(model, solo, same):
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
