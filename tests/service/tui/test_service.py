"""What goes wrong with a service is one line above the message, the message stays, and the chat goes on."""

import asyncio
import socket
import threading

import httpx
import pytest

from crucible.engine.scheduler import Limits
from crucible.errors import InputError, UnavailableError, UnsupportedError
from crucible.service.state import Settings
from crucible.service.tui.conversation import Conversation
from crucible.service.tui.local import LocalSource
from crucible.service.tui.remote import RemoteSource
from crucible.service.tui.source import About, Sampling

LONG = Sampling(temperature=1.0, seed=3, max_tokens=24)


def opened(source) -> About:
    """What a source says of itself."""

    async def main() -> About:
        try:
            return await source.open(lambda done, total: None)
        finally:
            await source.close()

    return asyncio.run(main())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_service_that_is_down_is_named_and_asked_again_with_the_next_message(play, serve, tiny):
    source = RemoteSource(f"http://127.0.0.1:{free_port()}")

    async def scene(stage):
        assert stage.note.startswith(f"no service answers at {source.url}") and "crucible serve" in stage.note
        await stage.say("Hello")
        assert stage.app.box.text == "Hello" and stage.app.note.has_class("-error")
        source._client.base_url = serve(tiny).url
        await stage.press("enter")
        await stage.settle()
        assert stage.turns[0].tokens and stage.note == ""

    play(source, scene)


def test_a_wrong_key_is_told_and_the_right_one_opens(play, serve, tiny):
    server = serve(tiny, settings=Settings("tiny", api_key="sesame"))

    async def refused(stage):
        assert "--api-key" in stage.note and "CRUCIBLE_API_KEY" in stage.note
        assert "sesam!" not in stage.note and stage.app.talk.conversation is None

    play(RemoteSource(server.url, "sesam!"), refused)
    assert opened(RemoteSource(server.url, "sesame")).model == "tiny"


def test_a_full_queue_says_when_to_come_again(play, serve, tiny, gate):
    server = serve(tiny, limits=Limits(queue=1, decode_batch=1), gate=gate)

    async def scene(stage):
        handles = [server.engine.submit("first", max_tokens=4)]
        await stage.until(lambda: server.engine.stats().running == 1)
        handles.append(server.engine.submit("second", max_tokens=4))
        await stage.say("Hello")
        assert stage.note.endswith("send the message again in 1 s") and stage.app.box.text == "Hello"
        gate.open()
        for handle in handles:
            await stage.until(lambda handle=handle: handle.done)
        await stage.press("enter")
        await stage.settle()
        assert stage.turns[0].tokens and len(stage.exchanges) == 1

    play(RemoteSource(server.url), scene)


def test_a_draining_service_is_told_and_the_answer_in_flight_ends(play, serve, tiny, gate):
    server = serve(tiny, gate=gate)

    async def scene(stage):
        await stage.send("Hello there")
        gate.let(3)
        await stage.until(lambda: stage.last and len(stage.last.turn.tokens) == 3)
        server.service.draining = True
        gate.open()
        await stage.settle()
        assert stage.last.turn.finish_reason == "length"
        await stage.say("And?")
        assert "send the message again" in stage.note and stage.app.box.text == "And?"
        server.service.draining = False

    play(RemoteSource(server.url), scene, sampling=LONG)


def test_an_engine_that_fails_in_an_answer_keeps_what_had_come(play, serve, tiny, gate):
    server = serve(tiny, gate=gate)

    async def scene(stage):
        await stage.send("Hello there")
        gate.let(3)
        await stage.until(lambda: stage.last and len(stage.last.turn.tokens) == 3)
        gate.fail(MemoryError("of the test"))
        await stage.settle()
        turn = stage.last.turn
        assert turn.finish_reason == "failed" and len(turn.tokens) == 3 and "broken off" in stage.last.facts
        assert stage.app.note.has_class("-error") and stage.note

    play(RemoteSource(server.url), scene, sampling=LONG)


BAD = {
    "no JSON": (lambda request: httpx.Response(200, text="<html>"), "is it a crucible service"),
    "another API": (lambda request: httpx.Response(200, json={"data": []}), "crucible serve prints"),
    "a status": (lambda request: httpx.Response(404), "/v1/models answers with status 404"),
    "a proxy": (lambda request: httpx.Response(502, text="bad gateway"), "status 502"),
}


@pytest.mark.parametrize("case", BAD)
def test_something_that_is_no_crucible_service_is_one_sentence(case):
    answer, sentence = BAD[case]
    with pytest.raises(UnavailableError) as caught:
        opened(RemoteSource("http://nowhere.invalid", transport=httpx.MockTransport(answer)))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_stream_that_breaks_off_is_a_failed_answer():
    part = 'event: tokens\ndata: {"index": 0, "tokens": [65, 66], "text": "AB"}\n\n'
    replies = {
        "/v1/models": {"json": {"data": [{"id": "m", "context": 64, "chat": True}]}},
        "/stats": {"json": {"limits": {"pages": 100}}},
        "/v1/tokenize": {"json": {"tokens": [1], "count": 1}},
        "/v1/generate": {"text": part},
    }
    answer = httpx.MockTransport(lambda request: httpx.Response(200, **replies[request.url.path]))

    async def scene():
        source = RemoteSource("http://nowhere.invalid", transport=answer)
        chat = Conversation.new(source, await source.open(lambda done, total: None))
        turn = await chat.begin("Hello", None, LONG)
        with pytest.raises(UnavailableError, match="before its end"):
            [piece async for piece in chat.answer(turn)]
        assert turn.text == "AB" and turn.tokens == [65, 66] and turn.finish_reason == "failed"
        await source.close()

    asyncio.run(scene())


@pytest.fixture
def without_template(tiny):
    """The tiny model has no chat template for this test."""
    template, tiny.chat_template = tiny.chat_template, None
    yield
    tiny.chat_template = template


def test_a_model_without_a_chat_template_is_refused_by_every_source(source, without_template):
    with pytest.raises(UnsupportedError, match=r"model tiny has no chat template.*completions"):
        opened(source)


def test_a_model_without_a_chat_template_ends_the_chat(play, engine_source, without_template):
    async def scene(stage):
        await stage.until(lambda: stage.app.return_value is not None)

    app = play(engine_source, scene, opened=False)
    assert app.return_code == 2 and isinstance(app.return_value, UnsupportedError)


def test_the_model_loads_with_its_progress_told(play):
    told = []

    async def scene(stage):
        assert (await stage.say("Hello")).turn.tokens
        assert "int8 on cpu" in str(stage.app.query_one("#who").content)

    class Heard(LocalSource):
        async def open(self, progress):
            return await super().open(lambda *at: (told.append(at), progress(*at)))

    source = Heard("synthetic-2x64", "int8", "cpu")
    play(source, scene)
    done, total = told[-1]
    assert done == total == len(told) > 1


def test_leaving_while_the_model_loads_ends_the_load(play):
    begun, left, blocks = threading.Event(), threading.Event(), []

    class Slow(LocalSource):
        async def open(self, progress):
            def held(done, total):
                blocks.append(done)
                begun.set()
                assert left.wait(30)

            return await super().open(held)

        async def close(self):
            await super().close()
            left.set()

    async def scene(stage):
        await stage.until(begun.is_set)
        await stage.press("ctrl+q")

    source = Slow("synthetic-2x64", "int8", "cpu")
    assert play(source, scene, opened=False).return_code == 0
    assert source._backend is None and len(blocks) == 1


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_url_of_an_openai_client_is_one_too(tiny_server, ending):
    source = RemoteSource(tiny_server.url + ending)
    assert source.url == tiny_server.url and opened(source).model == "tiny"


def test_https_to_a_port_without_it_is_one_sentence(tiny_server):
    source = RemoteSource(tiny_server.url.replace("http://", "https://"))
    with pytest.raises(UnavailableError, match=r"no TLS with https://.*; .*give the URL with http://$"):
        opened(source)


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:8000", "ftp://host", "http://", "http://[::1", "x y"),
        *("http://h:0", "http://h:65536", "http://h/?a=b", "http://h/#a"),
    ],
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(InputError, match=r"give one like http://127\.0\.0\.1:8000"):
        RemoteSource(url)


@pytest.mark.parametrize("key", ["", "schlüssel", "a\nb"])
def test_a_key_that_no_header_carries_is_refused_without_showing_it(key):
    with pytest.raises(InputError) as caught:
        RemoteSource("http://127.0.0.1", key)
    assert not key or key not in str(caught.value)
