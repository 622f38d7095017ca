"""Messages come back as they went, and a step is one of them."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from crucible.engine.events import EngineStopped, Logprobs, Result, Timings, Token, TopLogprob
from crucible.engine.request import Checked
from crucible.engine.scheduler import Limits
from crucible.engine.stats import Counters, Stats, StepRecord
from crucible.errors import CrucibleError
from crucible.model.generate import RandomState
from crucible.numerics.bits import as_bits
from crucible.sampling.params import SEED_LIMIT, SamplingParams
from crucible.service.channel import protocol
from crucible.service.channel.protocol import decode_from_engine, decode_to_engine, encode

RESULT = Result(
    id=3,
    text="caf\u00e9 \U0001f600",
    tokens=[1, 2],
    prompt_tokens=[5],
    finish_reason="stop",
    stopped_by="\n\n",
    random_state=RandomState(SEED_LIMIT - 1, 2),
    logits_digests=["ab" * 16],
    k_digest="k",
    v_digest=None,
    logprobs=[Logprobs(-math.inf, (TopLogprob(7, -0.1), TopLogprob(8, -1e-300)))],
    cached_rows=16,
    preemptions=1,
    timings=Timings(0.1, None, 0.3),
)
TOKEN = Token(4, 77, "\ufffd", 12, "cd" * 16, Logprobs(-0.5, ()))
STATS = Stats(Counters(steps=9, tokens=2), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, "why")


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1e-30, 3.0e38])
@pytest.mark.parametrize("sampler", ["inverse-cdf", "gumbel-id"])
def test_a_checked_request_arrives_with_every_bit(temperature, sampler):
    params = SamplingParams(temperature, 40, 0.1 + 0.2, SEED_LIMIT - 1, sampler)
    sent = Checked([0, 5, 2**31], params, 7, frozenset({2, 9}), ("a", "\u4f60"), 5, True, True)
    (submit,) = decode_to_engine(encode([protocol.Submit(1, [protocol.Asked.of(6, sent)])]))
    (asked,) = submit.requests
    got = asked.checked()
    assert asked.key == 6 and got == sent and got.params.greedy == params.greedy
    assert type(got.params.temperature) is np.float32
    assert as_bits(np.array([got.params.temperature])) == as_bits(np.array([params.temperature]))


@pytest.mark.parametrize("event", [TOKEN, TOKEN._replace(logprobs=None, logits_digest=None), RESULT])
def test_an_event_arrives_as_it_was(event):
    (got,) = decode_from_engine(encode([protocol.events([(5, event)])]))
    if isinstance(event, Token):
        assert (got.keys, got.tokens, got.ended) == ([5], [event], [])
    else:
        (end,) = got.ended
        assert end.result == event and end.result.timings == event.timings and end.result.id == 3


@pytest.mark.parametrize("kind", protocol.ERRORS.values(), ids=protocol.ERRORS)
def test_an_error_arrives_as_its_kind_with_its_sentence(kind):
    got = protocol.error(*protocol.spelled(kind("one sentence; a way out")))
    assert type(got) is kind and str(got) == "one sentence; a way out"


def test_an_error_that_is_none_of_ours_is_told_with_its_type():
    got = protocol.error(*protocol.spelled(ValueError("inside")))
    assert type(got) is CrucibleError and str(got) == "ValueError: inside"


def test_all_events_of_a_step_are_one_message_in_their_order():
    news = [(key, Token(0, 60 + key, "x", 1)) for key in range(16)]
    news.insert(9, (8, RESULT))
    news.append((15, EngineStopped("over")))
    (got,) = decode_from_engine(encode([protocol.events(news)]))
    assert list(zip(got.keys, got.tokens, strict=True)) == [n for n in news if isinstance(n[1], Token)]
    assert [(end.key, end.kind) for end in got.ended] == [(8, ""), (15, "EngineStopped")]
    assert len(encode(protocol.events(news[:9]))) < 9 * 32


@pytest.mark.parametrize(
    "message",
    [
        protocol.Loading(3, 9),
        protocol.Ready("cpu", Limits(chunk_cap=3), {"numpy": "2"}, 0.5),
        protocol.Accepted(1),
        protocol.Refused(1, "QueueFull", "full"),
        protocol.StatsReply(2, STATS),
        protocol.Stopped(0),
        protocol.Fatal("InputError", "no model"),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_the_engine_says_arrives(message):
    assert decode_from_engine(encode([message, message])) == [message, message]


def test_the_steps_one_by_one_arrive_with_the_counters():
    record = StepRecord(*range(len(StepRecord._fields)))
    sent = replace(STATS, timeline=(record, record))
    assert decode_from_engine(encode([protocol.StatsReply(1, sent)]))[0].stats == sent


@pytest.mark.parametrize(
    "message",
    [
        protocol.Load("m", "cpu", "int8", Limits(), False, "reference"),
        protocol.Cancel([1, 2]),
        protocol.StatsRequest(3, True),
        protocol.Shutdown(2.5),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_the_parent_says_arrives(message):
    assert decode_to_engine(encode([message, message])) == [message, message]


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"\x91\x90", encode(protocol.Accepted(1)), encode([["Exec", "rm"]])),
        *(encode([{"type": "Ready"}]), encode([["Accepted", "1"]])),
    ],
)
def test_anything_else_is_refused(garbage):
    for decode in (decode_to_engine, decode_from_engine):
        with pytest.raises(msgspec.DecodeError):
            decode(garbage)
