"""Long texts: streams go on while one is encoded, and a hopeless one is refused before it is."""

import threading

import pytest

from crucible.model.tokenizer import ByteTokenizer

LONG = "a" * 5000  # more than the context of 1024; its length alone does not show it
HOPELESS = "<|end|>" * 2000  # would be 2000 tokens, and no token has more than 13 bytes


def messages(text: str) -> dict:
    """The least chat."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]}


# What asks for tokens, with a text in every form that a face takes.
GENERATING = {
    "native": ("/v1/generate", lambda text: {"prompt": text, "max_tokens": 1}),
    "native_chat": ("/v1/generate", lambda text: {"messages": messages(text)["messages"], "max_tokens": 1}),
    "completions": ("/v1/completions", lambda text: {"model": "tiny", "prompt": text}),
    "several": ("/v1/completions", lambda text: {"model": "tiny", "prompt": ["hi", text]}),
    "chat": ("/v1/chat/completions", messages),
    "messages": ("/v1/messages", lambda text: {**messages(text), "max_tokens": 1}),
}
COUNTING = {
    "tokenize": ("/v1/tokenize", lambda text: {"text": text}),
    "tokenize_chat": ("/v1/tokenize", lambda text: {"messages": messages(text)["messages"]}),
    "count_tokens": ("/v1/messages/count_tokens", messages),
}


@pytest.mark.parametrize("name", GENERATING | COUNTING)
def test_others_are_answered_while_a_long_text_is_encoded(tiny_server, until, monkeypatch, name):
    path, body = (GENERATING | COUNTING)[name]
    begun, go_on, encode = threading.Event(), threading.Event(), ByteTokenizer.encode

    def slow(self, text):
        if len(text) >= len(LONG):
            begun.set()
            assert go_on.wait(30), "nobody was answered meanwhile"
        return encode(self, text)

    monkeypatch.setattr(ByteTokenizer, "encode", slow)
    replies = []
    asking = threading.Thread(target=lambda: replies.append(tiny_server.post(path, json=body(LONG))))
    asking.start()
    try:
        assert begun.wait(30)
        other = tiny_server.post("/v1/generate", json={"prompt": "hi", "max_tokens": 2}, timeout=15)
        assert other.status_code == 200 and not replies
    finally:
        go_on.set()
        asking.join(30)
    assert replies[0].status_code == (400 if name in GENERATING else 200)


@pytest.mark.parametrize("name", GENERATING)
def test_a_hopeless_prompt_is_refused_before_it_is_encoded(tiny_server, monkeypatch, name):
    path, body = GENERATING[name]
    encoded, encode = [], ByteTokenizer.encode
    monkeypatch.setattr(
        ByteTokenizer, "encode", lambda self, text: encoded.append(text) or encode(self, text)
    )
    reply = tiny_server.post(path, json=body(HOPELESS))
    error = reply.json()["error"]
    assert reply.status_code == 400 and not [text for text in encoded if HOPELESS in text]
    assert "the prompt alone has at least 10" in error["message"] and "context of 1024" in error["message"]
    if path in ("/v1/completions", "/v1/chat/completions"):
        param = "messages" if "chat" in path else "prompt"
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")


@pytest.mark.parametrize("name", COUNTING)
def test_a_hopeless_prompt_is_counted_all_the_same(tiny_server, name):
    path, body = COUNTING[name]
    reply = tiny_server.post(path, json=body(HOPELESS)).json()
    count = reply.get("count", reply.get("input_tokens"))
    assert count >= (2000 if name == "tokenize" else len(HOPELESS))


@pytest.mark.parametrize("name", GENERATING)
def test_a_prompt_beyond_the_context_is_not_told_to_ask_for_fewer_tokens(tiny_server, name):
    path, body = GENERATING[name]
    reply = tiny_server.post(path, json=body(LONG))
    error = reply.json()["error"]
    assert reply.status_code == 400 and "the prompt alone has 50" in error["message"]
    assert "ask for" not in error["message"]
    if path in ("/v1/completions", "/v1/chat/completions"):
        assert error["code"] == "context_length_exceeded"
