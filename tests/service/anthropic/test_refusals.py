"""What is wrong in a body is a 400 that names the field, by the SDK's own exception; nothing slips by."""

import anthropic
import pytest

IMAGE = {"type": "image", "source": {"type": "url", "url": "http://localhost/a.png"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "1"}
TOOL = {"name": "clock", "input_schema": {"type": "object"}}


def user(content) -> list[dict]:
    return [{"role": "user", "content": content}]


def begun(content) -> list[dict]:
    return [*user("a"), {"role": "assistant", "content": content}]


# name -> (fields that replace those of a good body, path of the field, a part of the sentence)
WRONG = {
    "no-messages": ({"messages": []}, "messages", "at least one"),
    "a-message-of-text": ({"messages": ["Hi"]}, "messages.0", "must be an object"),
    "many-messages": ({"messages": user("a") * 4097}, "messages", "at most 4096"),
    "many-blocks": (
        {"messages": user([{"type": "text", "text": "a"}] * 4097)},
        "messages.0.content",
        "at most 4096",
    ),
    "no-role": ({"messages": [{"content": "a"}]}, "messages.0.role", "missing"),
    "no-content": ({"messages": [{"role": "user"}]}, "messages.0.content", "missing"),
    "a-number-as-content": ({"messages": user(3)}, "messages.0.content", "must be a text or a list"),
    "null-as-content": ({"messages": user(None)}, "messages.0.content", "must be"),
    "an-empty-message": ({"messages": user("")}, "messages.0.content", "is empty"),
    "no-blocks": ({"messages": user([])}, "messages.0.content", "is empty"),
    "an-empty-block": (
        {"messages": user([{"type": "text", "text": ""}])},
        "messages.0.content.0.text",
        "is empty",
    ),
    "an-empty-answer-within": (
        {"messages": [*begun(""), *user("b")]},
        "messages.1.content",
        "only a last message of the assistant",
    ),
    "a-block-without-type": ({"messages": user([{"text": "a"}])}, "messages.0.content.0.type", "missing"),
    "a-block-without-text": ({"messages": user([{"type": "text"}])}, "messages.0.content.0.text", "missing"),
    "a-block-of-a-number": (
        {"messages": user([{"type": "text", "text": 1}])},
        "messages.0.content.0.text",
        "must be",
    ),
    "a-second-block": (
        {"messages": user([{"type": "text", "text": "a"}, 7])},
        "messages.0.content.1",
        "must be",
    ),
    "an-unknown-field-of-a-block": (
        {"messages": user([{"type": "text", "text": "a", "colour": "red"}])},
        "messages.0.content.0.colour",
        "not a field",
    ),
    "an-unknown-field-of-a-message": (
        {"messages": [{"role": "user", "content": "a", "name": "Ann"}]},
        "messages.0.name",
        "not a field",
    ),
    "an-image": ({"messages": user([IMAGE])}, "messages.0.content.0", "'image' is not supported"),
    "a-document": ({"messages": user([DOCUMENT])}, "messages.0.content.0", "'document' is not supported"),
    "a-tool-result": ({"messages": [*begun("b"), *user([RESULT])]}, "messages.2.content.0", "'tool_result'"),
    "a-thinking-block": (
        {"messages": begun([{"type": "thinking", "thinking": "x", "signature": "y"}])},
        "messages.1.content.0",
        "'thinking' is not supported",
    ),
    "citations": (
        {"messages": user([{"type": "text", "text": "a", "citations": [{"type": "char_location"}]}])},
        "messages.0.content.0.citations",
        "not supported",
    ),
    "a-wrong-cache-control": (
        {"messages": user([{"type": "text", "text": "a", "cache_control": {"type": "forever"}}])},
        "messages.0.content.0.cache_control.type",
        "'ephemeral'",
    ),
    "a-system-message": (
        {"messages": [{"role": "system", "content": "a"}]},
        "messages.0.role",
        "field system",
    ),
    "a-tool-message": (
        {"messages": [{"role": "tool", "content": "a"}]},
        "messages.0.role",
        "'user' or 'assistant'",
    ),
    "an-answer-first": ({"messages": [{"role": "assistant", "content": "a"}]}, "messages.0.role", "user's"),
    "an-answer-that-ends-blank": ({"messages": begun("So ")}, "messages.1.content", "white space"),
    "a-system-image": ({"system": [IMAGE]}, "system.0", "not supported"),
    "an-empty-system-block": ({"system": [{"type": "text", "text": ""}]}, "system.0.text", "is empty"),
    "a-system-number": ({"system": 4}, "system", "must be a text or a list"),
    "no-tokens": ({"max_tokens": 0}, "max_tokens", "at least 1"),
    "negative-tokens": ({"max_tokens": -1}, "max_tokens", "at least 1"),
    "half-a-token": ({"max_tokens": 1.5}, "max_tokens", "whole number"),
    "tokens-as-text": ({"max_tokens": "8"}, "max_tokens", "whole number"),
    "tokens-as-truth": ({"max_tokens": True}, "max_tokens", "whole number"),
    "endless-tokens": ({"max_tokens": 2**40}, "max_tokens", "at most"),
    "more-than-the-context": ({"max_tokens": 1024}, "messages", "exceed the context of 1024"),
    "a-hot-temperature": ({"temperature": 1.01}, "temperature", "at most 1"),
    "a-negative-temperature": ({"temperature": -0.1}, "temperature", "at least 0"),
    "temperature-as-text": ({"temperature": "0.5"}, "temperature", "number"),
    "a-vanishing-temperature": ({"temperature": 1e-50}, "temperature", "float32"),
    "top-p-of-nothing": ({"top_p": 0}, "top_p", "greater than 0"),
    "top-p-of-more": ({"top_p": 1.5}, "top_p", "at most 1"),
    "negative-top-k": ({"top_k": -1}, "top_k", "at least 0"),
    "half-a-top-k": ({"top_k": 2.5}, "top_k", "whole number"),
    "a-negative-seed": ({"seed": -1}, "seed", "at least 0"),
    "a-wide-seed": ({"seed": 2**64}, "seed", "at most"),
    "an-unknown-sampler": ({"sampler": "dice"}, "sampler", "inverse-cdf"),
    "one-stop-sequence": ({"stop_sequences": "x"}, "stop_sequences", "must be a list"),
    "an-empty-stop-sequence": ({"stop_sequences": ["a", ""]}, "stop_sequences.1", "at least 1"),
    "a-long-stop-sequence": ({"stop_sequences": ["x" * 257]}, "stop_sequences.0", "at most 256"),
    "many-stop-sequences": ({"stop_sequences": ["x"] * 17}, "stop_sequences", "at most 16"),
    "a-stop-number": ({"stop_sequences": [4]}, "stop_sequences.0", "must be a text"),
    "stream-as-text": ({"stream": "yes"}, "stream", "true or false"),
    "ignore-eos-as-number": ({"ignore_eos": 1}, "ignore_eos", "true or false"),
    "unknown-metadata": ({"metadata": {"colour": "red"}}, "metadata.colour", "not a field"),
    "tools": ({"tools": [TOOL]}, "tools", "not supported"),
    "a-tool-choice": ({"tool_choice": {"type": "any"}}, "tool_choice", "not supported"),
    "thinking": (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "thinking",
        '{"type": "disabled"}',
    ),
    "an-effort": ({"output_config": {"effort": "high"}}, "output_config", "not supported"),
    "a-json-schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        "output_config",
        "not supported",
    ),
    "speed": ({"speed": "fast"}, "speed", "not supported"),
    "a-container": ({"container": "c"}, "container", "not supported"),
    "a-place": ({"inference_geo": "eu"}, "inference_geo", "not supported"),
    "diagnostics": ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics", "not supported"),
    "tool-servers": ({"mcp_servers": [{"name": "x"}]}, "mcp_servers", "not supported"),
    "managed-context": ({"context_management": {"edits": []}}, "context_management", "not supported"),
    "an-unknown-field": ({"unheard_of": 1}, "unheard_of", "not a field"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named(ask, refused, name):
    fields, path, part = WRONG[name]
    error = refused(ask, **fields)
    assert type(error) is anthropic.BadRequestError and error.type == "invalid_request_error"
    assert error.api_message.startswith(f"{path}: ") and part in error.api_message, error.api_message


@pytest.mark.parametrize("missing", ["model", "messages", "max_tokens"])
def test_a_missing_field_is_named(http, asked, missing):
    body = asked("Hello")
    del body[missing]
    reply = http.post("/v1/messages", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"] == {
        "type": "invalid_request_error",
        "message": f"{missing}: is missing; give it",
    }


@pytest.mark.parametrize(
    "messages", ["Hi", {"role": "user"}, 7, None], ids=["text", "object", "number", "null"]
)
def test_messages_are_a_list(http, asked, messages):
    reply = http.post("/v1/messages", json=asked("Hello") | {"messages": messages})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("messages: ") and "list" in reply.text


@pytest.mark.parametrize("name", ["no-messages", "an-image", "tools", "a-system-message", "an-unknown-field"])
def test_a_stream_is_refused_before_it_begins(http, asked, name):
    reply = http.post("/v1/messages", json=asked("Hello", stream=True) | WRONG[name][0])
    assert reply.status_code == 400 and reply.headers["content-type"] == "application/json"
    assert reply.json()["error"]["message"].startswith(f"{WRONG[name][1]}: ")


def test_an_unknown_model_is_not_found(ask, refused):
    error = refused(ask, "Hello", model="claude")
    assert type(error) is anthropic.NotFoundError and error.type == "not_found_error"
    assert error.api_message == "model: there is no model 'claude' here; use 'tiny'"


@pytest.mark.parametrize("version", ["2023-01-01", "2026-10-22", "latest", ""])
def test_another_version_of_the_api_is_refused(http, asked, version):
    reply = http.post("/v1/messages", json=asked("Hello"), headers={"anthropic-version": version})
    assert reply.status_code == 400 and reply.json()["error"]["message"].startswith("anthropic-version: ")


def test_a_refused_request_leaves_nothing_behind(ask, refused, tiny_server):
    before = tiny_server.engine.stats().totals.submitted
    for fields, _, _ in WRONG.values():
        refused(ask, **fields)
    assert tiny_server.engine.stats().totals.submitted == before


def test_a_text_of_the_client_is_not_repeated_at_length(ask, refused):
    secret = "my secret " * 100
    for fields in (
        {"model": secret},
        {"sampler": secret},
        {"thinking": {"type": secret}},
        {"tools": [secret]},
    ):
        assert len(refused(ask, "Hello", **fields).api_message) < 250
