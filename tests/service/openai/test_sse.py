"""Streams: the order of chunks, their framing on the wire, and usage."""

import pytest
from openai.types.chat import ChatCompletionChunk

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "seed": 1, "max_tokens": 5}
COMPLETION = {"model": "tiny", "prompt": "To be", "seed": 1, "max_tokens": 5}
PATHS = [
    pytest.param("/v1/chat/completions", CHAT, id="chat"),
    pytest.param("/v1/completions", COMPLETION, id="completion"),
]


@pytest.fixture(scope="module")
def post(http):
    """post(path, body) -> the streamed response, read to its end."""
    return lambda path, body, **more: http.post(path, json={**body, "stream": True, **more})


@pytest.fixture
def events(post, parse_events):
    """events(path, body) -> data of each event; none of them is named."""

    def read(path, body, **more):
        found = parse_events(post(path, body, **more).text)
        assert {name for name, _ in found} == {None}
        return [data for _, data in found]

    return read


@pytest.mark.parametrize("path, body", PATHS)
def test_the_response_is_an_event_stream_that_nobody_caches(post, path, body):
    headers = post(path, body).headers
    assert headers["content-type"].split(";")[0] == "text/event-stream"
    assert headers["cache-control"] == "no-cache" and "content-length" not in headers


@pytest.mark.parametrize("path, body", PATHS)
def test_the_stream_ends_with_done(events, path, body):
    *chunks, last = events(path, body)
    assert last == "[DONE]" and "[DONE]" not in chunks


@pytest.mark.parametrize("path, body", PATHS)
def test_all_chunks_have_one_head(events, path, body):
    heads = [
        {name: chunk[name] for name in ("id", "object", "created", "model", "system_fingerprint", "seed")}
        for chunk in events(path, body)[:-1]
    ]
    assert all(head == heads[0] for head in heads) and heads[0]["model"] == "tiny"


@pytest.mark.parametrize("path, body", PATHS)
def test_the_finish_reason_comes_once_and_last(events, path, body):
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in events(path, body)[:-1]]
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}


def test_the_role_comes_first_and_once(events):
    deltas = [chunk["choices"][0]["delta"] for chunk in events("/v1/chat/completions", CHAT)[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(delta.keys() == {"content"} for delta in deltas[1:-1]) and deltas[-1] == {}


def test_each_choice_gets_its_role(events):
    chunks = events("/v1/chat/completions", CHAT, n=3)[:-1]
    roles = [c["choices"][0]["index"] for c in chunks if "role" in c["choices"][0]["delta"]]
    assert roles == [0, 1, 2]


@pytest.mark.parametrize("path, body", PATHS)
def test_a_chunk_has_one_choice(events, path, body):
    assert {len(chunk["choices"]) for chunk in events(path, body, n=3)[:-1]} == {1}


@pytest.mark.parametrize("path, body", PATHS)
def test_no_chunk_of_a_choice_is_empty(events, path, body):
    for chunk in events(path, body, max_tokens=12)[1:-2]:
        choice = chunk["choices"][0]
        assert choice.get("text") or choice["delta"]["content"]


@pytest.mark.parametrize("path, body", PATHS)
def test_usage_comes_last_without_a_choice_and_is_that_of_the_whole_reply(events, http, path, body):
    *_, usage, done = events(path, body, n=2, stream_options={"include_usage": True})
    whole = http.post(path, json={**body, "n": 2}).json()["usage"]
    assert done == "[DONE]" and usage["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage["usage"][name] == whole[name] > 0


@pytest.mark.parametrize("path, body", PATHS)
def test_with_usage_the_chunks_before_have_a_null_one(events, path, body):
    chunks = events(path, body, stream_options={"include_usage": True})[:-2]
    assert len(chunks) > 1 and all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}], ids=["none", "empty", "false"])
def test_without_asking_there_is_no_usage(events, options):
    chunks = events("/v1/chat/completions", CHAT, stream_options=options)[:-1]
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_chat_chunks_parse_without_coercion(events):
    fields = {"n": 2, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}}
    chunks = events("/v1/chat/completions", CHAT, **fields)[:-1]
    assert {ChatCompletionChunk.model_validate(chunk, strict=True).object for chunk in chunks} == {
        "chat.completion.chunk"
    }


def test_the_kinds_of_objects_are_named(events):
    assert events("/v1/completions", COMPLETION)[0]["object"] == "text_completion"
    assert events("/v1/chat/completions", CHAT)[0]["object"] == "chat.completion.chunk"
