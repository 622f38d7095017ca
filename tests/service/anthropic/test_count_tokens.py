"""POST /v1/messages/count_tokens: the number that the same messages would have as usage.input_tokens."""

import anthropic
import pytest


def test_the_count_is_the_usage_of_the_same_messages(client, ask, talk):
    counted = client.messages.count_tokens(model="tiny", **talk.fields)
    assert counted.input_tokens == ask(**talk.fields, max_tokens=1).usage.input_tokens


def test_the_count_is_the_length_of_the_prompt(client, tiny):
    messages = [{"role": "user", "content": "naïve <|end|>"}]
    assert client.messages.count_tokens(model="tiny", messages=messages).input_tokens == len(
        tiny.encode_chat(messages)
    )


def test_a_prompt_longer_than_the_context_can_be_counted(client):
    messages = [{"role": "user", "content": "a" * 5000}]
    assert client.messages.count_tokens(model="tiny", messages=messages).input_tokens > 5000


def test_counting_runs_nothing(client, tiny_server):
    before = tiny_server.engine.stats().totals.submitted
    client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "a"}])
    assert tiny_server.engine.stats().totals.submitted == before


def test_beta_clients_count_too(client):
    messages = [{"role": "user", "content": "a"}]
    plain = client.messages.count_tokens(model="tiny", messages=messages)
    assert (
        client.beta.messages.count_tokens(model="tiny", messages=messages).input_tokens == plain.input_tokens
    )


@pytest.mark.parametrize("fields", [{"tools": []}, {"thinking": {"type": "disabled"}}, {"output_config": {}}])
def test_a_field_that_changes_nothing_is_taken(client, fields):
    messages = [{"role": "user", "content": "a"}]
    plain = client.messages.count_tokens(model="tiny", messages=messages)
    assert client.messages.count_tokens(model="tiny", messages=messages, **fields) == plain


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
        ({"system": [{"type": "text", "text": ""}]}, "system.0.text"),
        ({"tools": [{"name": "x", "input_schema": {}}]}, "tools"),
        ({"extra_body": {"max_tokens": 1}}, "max_tokens"),
        ({"extra_body": {"seed": 1}}, "seed"),
    ],
    ids=["no-messages", "an-answer-first", "an-image", "an-empty-block", "tools", "max-tokens", "a-seed"],
)
def test_what_a_message_would_refuse_is_refused(client, refused, fields, path):
    wanted = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], **fields}
    error = refused(client.messages.count_tokens, **wanted)
    assert type(error) is anthropic.BadRequestError and error.api_message.startswith(f"{path}: ")


def test_an_unknown_model_is_not_found(client, refused):
    error = refused(client.messages.count_tokens, model="x", messages=[{"role": "user", "content": "a"}])
    assert type(error) is anthropic.NotFoundError
