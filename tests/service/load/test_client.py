"""The load client against a stand-in: what was sent comes back whole, in time order, whatever goes wrong."""

import asyncio
import gc
import importlib.util
import json
import time
from pathlib import Path

import pytest

from crucible.errors import InputError
from crucible.gates.service_traffic import cases, send
from crucible.service.load import client
from crucible.service.load.asks import Ask, closed, fixed, open_arrivals, poisson, prompt
from crucible.service.load.http import BadReply, Unpacker, _Line
from crucible.service.load.samples import digest
from crucible.service.load.target import target

_spec = importlib.util.spec_from_file_location("standin", Path(__file__).with_name("standin.py"))
standin = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(standin)


def run(asks, log=None, **how):
    """(samples, stand-in) of one burst."""

    async def go():
        server = standin.StandIn(**how)
        to = target(await server.start())
        try:
            return await client.run(to, asks, client.Log() if log is None else log), server
        finally:
            await server.stop()

    return asyncio.run(go())


def test_every_token_has_a_time_and_the_tokens_are_the_servers():
    asks = closed([5, 9, 30], 8, seed=3, burst=0)
    samples, server = run(asks)
    for sample, ask in zip(samples, asks, strict=True):
        assert sample.good and list(sample.tokens) == standin.expected(ask.prompt, 8)
        assert sample.digest == digest(sample.tokens) and len(sample.times) == 8
        assert list(sample.times) == sorted(sample.times) and list(sample.events) == list(range(8))
        assert sample.sent <= sample.times[0] <= sample.times[-1] <= sample.end
        assert sample.server["first_token"] == 0.0
    assert sorted(len(body["prompt"]) for body in server.seen) == [5, 9, 30]
    assert all(body["ignore_eos"] and body["stream"] for body in server.seen)


def test_tokens_of_one_event_share_a_time_and_are_counted():
    (sample,), _ = run(closed([4], 10, 1, 0), together=4)
    assert sample.events == (0,) * 4 + (1,) * 4 + (2,) * 2
    assert all(len(set(sample.times[at : at + 4])) == 1 for at in (0, 4, 8))
    assert sample.shared == 10 - len(sample.arrivals) and len(sample.gaps) == len(sample.arrivals) - 1


def test_events_that_come_in_pieces_are_the_same_events():
    asks = closed([4, 4], 6, 1, 0)
    assert [s.tokens for s in run(asks, pieces=True)[0]] == [s.tokens for s in run(asks)[0]]


def test_no_token_is_earlier_than_the_server_sent_it():
    (sample,), _ = run(closed([4], 4, 1, 0), first=0.02, gap=0.01)
    assert all(at - sample.sent >= 0.02 + 0.009 * i for i, at in enumerate(sample.times))


def test_a_request_waits_for_the_tokens_of_another():
    stream = Ask("stream", prompt(4, 1, 0), 6)
    late = Ask("late", prompt(4, 1, 1), 2, after=(0, 3))
    (first, second), _ = run([stream, late], gap=0.003)
    assert first.times[2] <= second.sent and first.good and second.good


def test_one_that_waits_for_tokens_that_never_come_is_sent_at_the_others_end():
    (first, second), _ = run([Ask("a", (40,), 8), Ask("b", (41,), 2, after=(0, 6))], cut=3)
    assert "broke off" in first.error or "ended before" in first.error
    assert second.sent >= first.end - 1e-3


@pytest.mark.parametrize("how, said", [({"refuse": True}, "as many wait"), ({"cut": 2}, "ended before")])
def test_a_request_that_fails_is_a_sample_that_says_why(how, said):
    samples, _ = run(closed([3, 3], 5, 1, 0), **how)
    assert not any(s.good for s in samples) and all(said in s.error for s in samples)


def test_nobody_listening_is_said_for_every_request():
    to = target("http://127.0.0.1:9")
    samples = asyncio.run(client.run(to, closed([3, 3], 2, 1, 0), client.Log()))
    assert [s.status for s in samples] == [0, 0] and all("cannot connect" in s.error for s in samples)


def test_an_interrupt_keeps_what_is_done_and_leaves_no_connection():
    log = client.Log()

    async def go():
        server = standin.StandIn(hold=4)
        to = target(await server.start())
        asks = [Ask("short", (50,), 3), Ask("long", (51,), 9)]
        task = asyncio.create_task(client.run(to, asks, log))
        while not log.samples:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [t for t in others if "client" in repr(t.get_coro())]
        await server.stop()

    asyncio.run(go())
    assert [s.label for s in log.samples] == ["short"] and log.samples[0].good


@pytest.mark.parametrize("leave", [None, 50])
def test_an_interrupt_of_the_gates_requests_leaves_no_exception_to_the_loop(leave):
    reported = []

    async def go():
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what["message"]))
        server = standin.StandIn(gap=0.01)
        to = target(await server.start())
        (case,) = cases(1, 60, 1)
        tasks = [asyncio.ensure_future(send(to, case, leave)) for _ in range(4)]
        while len(server.seen) < 4:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        await server.stop()
        while server.left < 4:
            await asyncio.sleep(0)
        del tasks, ended

    asyncio.run(go())
    gc.collect()
    assert not reported


def test_the_clock_is_read_for_every_connection_before_any_is_unpacked():
    heard = []

    async def go():
        lines = [_Line(lambda i=i: heard.append((i, time.perf_counter()))) for i in range(3)]
        for line in lines:
            line.data_received(CHUNKED)
        assert not heard
        await asyncio.gather(*(line.ended for line in lines))
        return [line.unpacker.reply.pieces[0][0] for line in lines]

    stamps = asyncio.run(go())
    assert [i for i, _ in heard] == [0, 1, 2] and stamps == sorted(stamps)
    assert max(stamps) <= min(at for _, at in heard)


def test_arrivals_repeat_by_seed():
    assert poisson(5, 50, 1) == poisson(5, 50, 1) != poisson(5, 50, 2)
    assert poisson(5, 50, 1)[:20] == poisson(5, 20, 1) and list(poisson(5, 50, 1)) == sorted(
        poisson(5, 50, 1)
    )
    assert poisson(5, 2000, 1)[-1] == pytest.approx(400, rel=0.1)
    assert fixed(4, 3) == (0.0, 0.25, 0.5)
    first, again = (open_arrivals("poisson", 5, [3, 7], 6, 4, 9) for _ in range(2))
    assert first == again and [len(a.prompt) for a in first] == [3, 7] * 3


def test_open_arrivals_do_not_wait_for_one_another():
    asks = open_arrivals("fixed", 200, [3], 4, 3, 1)
    samples, _ = run(asks, company=4)  # nobody gets a token before all four have come
    assert samples[3].sent < samples[0].times[0]
    assert all(s.sent >= s.planned for s in samples)


def test_prompts_of_two_bursts_share_no_beginning():
    heads = {ask.prompt[:4] for burst in range(8) for ask in closed([16] * 16, 1, 5, burst)}
    assert len(heads) == 128


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(InputError):
        fixed(rate, 3)


@pytest.mark.parametrize("url", ["http://127.0.0.1:80", "http://localhost:8000/", "http://[::1]:9"])
def test_loopback_is_taken(url):
    assert target(url).port in (80, 8000, 9)


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:80", "http://example.org", "http://localhost.example.org", "http://127.0.0.1.nip.io"],
)
def test_another_machine_is_refused_unless_allowed(url):
    with pytest.raises(InputError, match="allow-remote"):
        target(url)
    assert target(url, allow_remote=True).host


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1", "127.0.0.1:8000", "http://127.0.0.1:x", "http://127.0.0.1/v1", "", "http://"]
)
def test_what_is_no_plain_url_is_refused(url):
    with pytest.raises(InputError):
        target(url)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    "raw", [CHUNKED, b"HTTP/1.1 404 No\r\ncontent-length: 5\r\n\r\nabcde", b"HTTP/1.0 200 OK\r\n\r\nabcde"]
)
def test_a_reply_is_the_same_however_it_is_cut(raw, step):
    unpacker = Unpacker()
    for at in range(0, len(raw), step):
        unpacker.feed(float(at), raw[at : at + step])
    unpacker.eof()
    assert unpacker.reply.body == b"abcde" and unpacker.reply.status in (200, 404)


@pytest.mark.parametrize(
    "raw",
    [b"HELLO\r\n\r\n", b"x" * 70000, CHUNKED.replace(b"3\r", b"zz\r"), CHUNKED[:-9], b"HTTP/1.1 200 OK\r\n"],
)
def test_what_is_no_reply_is_told(raw):
    with pytest.raises(BadReply):
        unpacker = Unpacker()
        unpacker.feed(0.0, raw)
        unpacker.eof()


def test_a_body_is_json_that_a_face_takes():
    from crucible.service.load.faces import find

    to = target("http://127.0.0.1", face="openai", model="m")
    body = json.loads(json.dumps(find("openai").body(to, Ask("a", (1, 2), 3))))
    assert body["model"] == "m" and body["prompt"] == [1, 2] and "seed" not in body
    with pytest.raises(InputError):
        find("anthropic")
