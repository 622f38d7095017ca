"""What comes over the channel is what the engine returns, all or none, and nothing is left behind."""

import asyncio
from types import SimpleNamespace

import pytest

from crucible.engine.events import QueueFull, Result, Token
from crucible.engine.request import Checked, Request
from crucible.errors import InputError
from crucible.service.channel import protocol

KINDS = {
    "greedy": Request("The quick brown fox", 24, ignore_eos=True),
    "token ids": Request((1, 2, 3, 699), 12, temperature=1.0, seed=2**64 - 1),
    "gumbel": Request("hello", 16, temperature=0.7, seed=5, sampler="gumbel-id"),
    "top-k and top-p": Request("hello", 16, temperature=1.3, top_k=9, top_p=0.8, seed=6),
    "stop string": Request("The quick", 60, stop_strings=("sibi", "never")),
    "stop token": Request("Hello", 60, stop=(307,)),
    "logprobs": Request("abc", 8, logprobs=5),
    "digests": Request("abc", 8, temperature=1.0, seed=1, digests=True, kv_digests=True),
}


@pytest.fixture(scope="module")
def together(channel):
    """Events and results of every kind, submitted at once."""
    streams = channel.submit(*KINDS.values())
    return dict(zip(KINDS, map(channel.collect, streams), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_returns_what_the_engine_returns_alone(together, alone, kind):
    events, error = together[kind]
    assert error is None and events[-1] == alone(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_come_in_order_and_spell_the_result(together, kind):
    *tokens, result = together[kind][0]
    assert all(isinstance(token, Token) for token in tokens) and isinstance(result, Result)
    assert [token.index for token in tokens] == list(range(len(result.tokens)))
    assert [token.token for token in tokens] == result.tokens
    assert "".join(token.text for token in tokens) == result.text
    assert [token.logprobs for token in tokens if token.logprobs] == (result.logprobs or [])
    assert [token.logits_digest for token in tokens if token.logits_digest] == (result.logits_digests or [])


def test_all_tokens_of_a_step_cross_in_one_message(channel, monkeypatch):
    heard, decode = [], protocol.decode_from_engine

    def counted(data):
        came = decode(data)
        heard.extend(came)
        return came

    before = channel.stats().totals
    monkeypatch.setattr(protocol, "decode_from_engine", counted)
    channel.results(*(Request([key], 20, temperature=1.0, seed=key, ignore_eos=True) for key in range(8)))
    events = [message for message in list(heard) if isinstance(message, protocol.Events)]
    steps = channel.stats().totals.steps - before.steps
    assert len(events) == steps and sum(len(message.keys) for message in events) == 160
    assert max(len(message.keys) for message in events) == 8


def test_more_than_the_queue_takes_is_refused_whole_and_the_rest_goes_on(channel, alone):
    before = channel.stats().totals.submitted
    running = Request("go on", 40, ignore_eos=True)
    (stream,) = channel.submit(running)
    with pytest.raises(QueueFull, match="24 may; try again later"):
        channel.submit(*[Request("x", 2)] * 25)
    assert channel.collect(stream)[0][-1] == alone(running)
    assert channel.stats().totals.submitted == before + 1
    assert not channel.backend._streams and not channel.backend._waiting


def test_a_cancelled_stream_ends_with_what_it_has_and_gives_its_pages_back(channel, alone, brake):
    wanted = Request("never ends", 900, ignore_eos=True)

    async def some(stream):
        found = []
        async for batch in stream:
            found += batch
            if len(found) >= 3:
                stream.cancel()
        return found

    with brake("slow"):
        (stream,) = channel.submit(wanted)
        *tokens, result = channel.run(some(stream))
    assert result.finish_reason == "cancelled" and 3 <= len(result.tokens) < 900
    assert result.tokens == alone(wanted).tokens[: len(result.tokens)] == [token.token for token in tokens]
    stats = channel.stats()
    assert (stats.waiting, stats.running, stats.pages_used) == (0, 0, 0)


def test_a_caller_who_gives_up_while_submitting_leaves_nothing_running(channel, until, brake):
    checked = channel.backend.check(Request("never ends", 900, ignore_eos=True))

    async def give_up():
        task = asyncio.ensure_future(channel.backend.submit([checked]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    cancelled = channel.stats().totals.cancelled
    with brake("slow"):
        channel.run(give_up())
        forgotten = lambda: not channel.backend._streams and not channel.backend._waiting  # noqa: E731
        until(forgotten, "the streams are forgotten")
    stats = channel.stats()
    assert stats.totals.cancelled == cancelled + 1 and stats.pages_used == 0


def test_a_request_that_breaks_a_rule_is_refused_here_and_there(channel, alone):
    with pytest.raises(InputError, match="max_tokens 0"):
        channel.submit(Request("x", 0))
    forged = SimpleNamespace(temperature=-1.0, top_k=0, top_p=1.0, seed=0, sampler="inverse-cdf")
    broken = Checked([1], forged, 1, frozenset(), (), None, False)
    with pytest.raises(InputError, match="must be finite and at least 0"):
        channel.run(channel.backend.submit([broken]))
    assert channel.results(KINDS["greedy"]) == [alone(KINDS["greedy"])]


def test_the_steps_one_by_one_come_only_when_asked_for(channel):
    channel.results(Request("x", 2))
    assert channel.stats().timeline == () and channel.stats().totals.steps > 0
    assert len(channel.stats(timeline=True).timeline) > 0


def test_the_engine_says_what_it_runs_on(channel):
    ready = channel.backend.ready
    assert ready.device == "cpu" and ready.limits == channel.backend.limits
    assert ready.versions["numpy"] and ready.versions["crucible"] and ready.load_seconds > 0
