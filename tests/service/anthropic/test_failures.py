"""Errors that are no fault of a field: keys, bodies, overload, a service that stops, an engine that dies."""

import contextlib
import http.client
import json

import anthropic
import httpx
import pytest

from crucible.engine.events import RequestError
from crucible.engine.scheduler import Limits
from crucible.service.anthropic.reply import Reply
from crucible.service.state import Settings


@pytest.fixture
def guarded(serve, tiny):
    """A server that wants a key."""
    return serve(tiny, settings=Settings("tiny", api_key="k3y"))


SEED = {"seed": 3}  # of an answer of four tokens: what a drawn seed gives may end before


def hello(client, **more):
    return client.messages.create(
        model="tiny",
        max_tokens=4,
        messages=[{"role": "user", "content": "Hello"}],
        **{"extra_body": SEED, **more},
    )


@pytest.mark.parametrize(
    "key", [{"api_key": "k3y"}, {"api_key": None, "auth_token": "k3y"}], ids=["api-key", "auth-token"]
)
def test_the_right_key_lets_in(guarded, connected, key):
    with connected(guarded, **key) as client:
        assert hello(client).usage.output_tokens == 4


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_the_key_of_every_version_of_the_sdk_lets_in(guarded, header):
    headers = {"anthropic-version": "2023-06-01", header: "k3y" if header == "x-api-key" else "Bearer k3y"}
    assert httpx.get(f"{guarded.url}/v1/models", headers=headers).status_code == 200


def test_a_wrong_key_is_an_authentication_error(guarded, connected, refused):
    with connected(guarded, api_key="other") as client:
        for call in (
            lambda: hello(client),
            lambda: client.models.list(),
            lambda: client.models.retrieve("tiny"),
        ):
            error = refused(call)
            assert type(error) is anthropic.AuthenticationError and error.type == "authentication_error"
            assert "k3y" not in str(error)


BODIES = {
    "no-json": (b"{", 400, "invalid_request_error"),
    "nothing": (b"", 400, "invalid_request_error"),
    "a-list": (b"[]", 400, "invalid_request_error"),
    "not-a-number": (b'{"temperature": NaN}', 400, "invalid_request_error"),
    "no-utf-8": (b'{"model": "\xff"}', 400, "invalid_request_error"),
    "half-a-pair": (b'{"model": "\\ud800"}', 400, "invalid_request_error"),
    "a-key-twice": (b'{"model": "a", "model": "b"}', 400, "invalid_request_error"),
    "endless-nesting": (b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}", 400, "invalid_request_error"),
    "too-large": (b'{"model": "' + b"x" * (5 << 20) + b'"}', 413, "request_too_large"),
}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_request_is_refused(http, path, name):
    content, status, kind = BODIES[name]
    reply = http.post(path, content=content, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["type"], reply.json()["error"]["type"]) == (status, "error", kind)
    assert reply.json()["request_id"] == reply.headers["request-id"]


def test_a_body_of_another_kind_is_refused(http):
    reply = http.post("/v1/messages", content=b"{}", headers={"content-type": "text/plain"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (415, "invalid_request_error")


def test_another_method_is_refused(http):
    reply = http.get("/v1/messages")
    assert (reply.status_code, reply.json()["error"]["type"]) == (405, "invalid_request_error")
    assert reply.headers["allow"] == "POST"


def test_a_path_that_is_not_there_is_not_found(client, refused):
    error = refused(client.messages.batches.list)
    assert type(error) is anthropic.NotFoundError and error.type == "not_found_error"


def test_a_slow_body_is_a_timeout(serve, tiny):
    server = serve(tiny, settings=Settings("tiny", read_timeout=0.05))
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as line:
        line.putrequest("POST", "/v1/messages")
        line.putheader("content-type", "application/json")
        line.putheader("content-length", "17")
        line.endheaders(b'{"model": ')  # the rest never comes
        reply = line.getresponse()
        assert (reply.status, json.load(reply)["error"]["type"]) == (408, "timeout_error")


def test_a_full_queue_is_a_rate_limit_error_that_says_when_to_come_again(
    serve, tiny, gate, connected, refused, until
):
    server = serve(tiny, limits=Limits(queue=2), settings=Settings("tiny", retry_after=7), gate=gate)
    with connected(server) as client:
        ask = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        waiting = []
        for _ in range(20):  # as many as run, then as many as wait
            try:
                waiting.append(client.messages.create(**ask, stream=True))
            except anthropic.APIStatusError as error:
                assert type(error) is anthropic.RateLimitError and error.type == "rate_limit_error"
                assert error.response.headers["retry-after"] == "7"
                break
        else:
            raise AssertionError("the queue took everything")
        assert refused(hello, client).status_code == 429
        gate.open()
        assert len(waiting) >= 2 and all(list(one)[-1].type == "message_stop" for one in waiting)
        assert hello(client).usage.output_tokens == 4


@pytest.mark.parametrize("state", ["draining", "loading"])
def test_a_service_that_takes_nothing_is_overloaded(serve, tiny, connected, refused, state):
    server = serve(tiny)
    setattr(server.service, state, True)
    with connected(server) as client:
        error = refused(hello, client)
        assert type(error) is anthropic.ServiceUnavailableError and error.type == "overloaded_error"
        assert int(error.response.headers["retry-after"]) >= 1
        assert client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "a"}])
    setattr(server.service, state, False)


def test_a_dead_engine_is_overloaded(serve, tiny, gate, connected, refused):
    server = serve(tiny, gate=gate)
    gate.fail(RuntimeError("the device is gone"))
    with connected(server) as client:
        for _ in range(2):
            error = refused(hello, client)
            assert type(error) is anthropic.ServiceUnavailableError and error.type == "overloaded_error"


def test_an_engine_that_dies_ends_a_stream_with_an_error_event(serve, tiny, gate, connected):
    server = serve(tiny, gate=gate)
    with connected(server) as client:
        seen = []
        with (
            pytest.raises(anthropic.APIStatusError) as caught,
            client.messages.stream(
                model="tiny",
                max_tokens=9,
                messages=[{"role": "user", "content": "Hello"}],
                extra_body=SEED,  # whose first tokens are text, and no end
            ) as events,
        ):
            gate.let(2)
            for event in events:
                seen.append(event.type)
                if event.type == "text":
                    gate.fail(RuntimeError("the device is gone"))
        assert caught.value.type == "overloaded_error" and "message_stop" not in seen
        assert caught.value.body["request_id"] == caught.value.request_id


def test_a_request_that_fails_ends_a_stream_with_an_error_event(http, asked, monkeypatch, parse_events):
    def fail(self, result):
        raise RequestError("its logits hold a NaN")

    monkeypatch.setattr(Reply, "_closing", fail)
    *events, (name, last) = parse_events(http.post("/v1/messages", json=asked("Hello", stream=True)).text)
    assert events[0][0] == "message_start" and name == "error"
    assert last["error"] == {"type": "api_error", "message": "its logits hold a NaN"}


def test_what_nobody_foresaw_tells_nothing_of_the_inside(client, asked, arguments, refused, monkeypatch):
    def fail(self, result):
        raise KeyError("secret")

    monkeypatch.setattr(Reply, "whole", fail)
    error = refused(client.messages.create, **arguments(asked("Hello")))
    assert type(error) is anthropic.InternalServerError and error.type == "api_error"
    assert "secret" not in json.dumps(error.body)


def test_a_model_without_a_template_says_where_its_prompts_go(serve, tiny, connected, refused):
    import copy

    bare = copy.copy(tiny)
    bare.chat_template = None
    server = serve(bare)
    with connected(server) as client:
        for call in (
            hello,
            lambda c: c.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "a"}]),
        ):
            error = refused(call, client)
            assert (
                error.api_message
                == "messages: model 'tiny' has no chat template; send its prompt to /v1/completions"
            )
        assert client.models.retrieve("tiny").chat is False
    prompt = {"model": "tiny", "prompt": "To be", "max_tokens": 2}
    assert httpx.post(f"{server.url}/v1/completions", json=prompt).status_code == 200


def test_a_template_that_cannot_continue_an_answer_says_so(serve, tiny, connected, refused):
    import copy

    other = copy.copy(tiny)
    other.chat_template = (
        "{% for m in messages %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    )
    with connected(serve(other)) as client:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        error = refused(client.messages.create, model="tiny", max_tokens=4, messages=messages)
        assert error.status_code == 400 and "end with a user message" in error.api_message


def test_a_template_that_refuses_the_turns_is_quoted(serve, tiny, connected, refused):
    import copy

    other = copy.copy(tiny)
    other.chat_template = "{{ raise_exception('no system text, please') }}"
    with connected(serve(other)) as client:
        error = refused(hello, client)
        assert error.api_message.startswith(
            "messages: the chat template refuses the messages: 'no system text"
        )
