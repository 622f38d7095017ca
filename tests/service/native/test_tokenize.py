"""Text to token ids and back as the model's tokenizer does it."""

import pytest

TEXTS = ["", "plain", "caf\u00e9 \u4f60\u597d \U0001f600", "line\nbreak\t", "<|user|>x<|end|>", "\x00"]


@pytest.mark.parametrize("text", TEXTS, ids=["empty", "plain", "unicode", "spaces", "controls", "zero"])
def test_tokenize_is_the_tokenizer(client, tiny, text):
    reply = client.post("/v1/tokenize", json={"text": text}).json()
    assert reply == {"tokens": tiny.encode(text), "count": len(tiny.encode(text))}


@pytest.mark.parametrize("text", TEXTS[:4], ids=["empty", "plain", "unicode", "spaces"])
def test_detokenize_undoes_tokenize(client, text):
    tokens = client.post("/v1/tokenize", json={"text": text}).json()["tokens"]
    assert client.post("/v1/detokenize", json={"tokens": tokens}).json() == {"text": text}


def test_messages_are_tokenized_as_generate_takes_them(client):
    messages = [{"role": "user", "content": "Hi <|end|>"}]
    tokens = client.post("/v1/tokenize", json={"messages": messages}).json()["tokens"]
    asked = {"messages": messages, "max_tokens": 1, "prompt_ids": True}
    assert client.post("/v1/generate", json=asked).json()["prompt_ids"] == tokens


def test_generate_s_text_is_its_tokens_detokenized(client):
    reply = client.post("/v1/generate", json={"prompt": "text", "max_tokens": 20}).json()
    assert client.post("/v1/detokenize", json={"tokens": reply["tokens"]}).json()["text"] == reply["text"]


@pytest.mark.parametrize("tokens", [[700], [5, 2**31 - 1]], ids=["vocabulary", "largest"])
def test_a_token_that_there_is_not_has_no_text(client, tokens):
    reply = client.post("/v1/detokenize", json={"tokens": tokens})
    assert reply.status_code == 400 and "vocabulary of 700" in reply.json()["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"text": "a", "messages": [{"role": "user", "content": "b"}]}])
def test_tokenize_takes_text_or_messages(client, body):
    reply = client.post("/v1/tokenize", json=body)
    assert reply.status_code == 422 and reply.json()["error"]["code"] == "one_of_two"


def test_a_text_of_controls_only_takes_time_by_its_length(client, tiny):
    """A megabyte of control tokens: quadratic work on it would not end within the client's timeout."""
    text = "<|end|>" * 150_000
    reply = client.post("/v1/tokenize", json={"text": text}, timeout=15).json()
    assert reply["count"] == 150_000 and set(reply["tokens"]) == {260}
