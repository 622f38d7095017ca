"""Requests that are answered with an error: the SDK's exception, the field, the code and one sentence."""

import httpx
import openai
import pytest

from crucible.service.state import Settings

HI = [{"role": "user", "content": "Hi"}]
BOTH = {
    "seed-negative": ({"seed": -1}, "seed"),
    "seed-beyond-64-bits": ({"seed": 2**64}, "seed"),
    "temperature-negative": ({"temperature": -0.1}, "temperature"),
    "temperature-beyond-f32": ({"temperature": 1e39}, "temperature"),
    "top-p-zero": ({"top_p": 0}, "top_p"),
    "top-p-above-one": ({"top_p": 1.01}, "top_p"),
    "top-k-negative": ({"top_k": -1}, "top_k"),
    "sampler-unknown": ({"sampler": "beam"}, "sampler"),
    "no-tokens": ({"max_tokens": 0}, "max_tokens"),
    "no-choices": ({"n": 0}, "n"),
    "many-choices": ({"n": 129}, "n"),
    "five-stops": ({"stop": list("abcde")}, "stop"),
    "empty-stop": ({"stop": ""}, "stop"),
    "long-stop": ({"stop": "x" * 257}, "stop"),
    "stop-token-outside": ({"stop_token_ids": [700]}, "stop_token_ids"),
    "presence": ({"presence_penalty": 0.5}, "presence_penalty"),
    "frequency": ({"frequency_penalty": -1}, "frequency_penalty"),
    "bias": ({"logit_bias": {"50": 1}}, "logit_bias"),
}
COMPLETION = {
    "suffix": ({"suffix": "!"}, "suffix"),
    "best-of": ({"best_of": 2}, "best_of"),
    "best-of-below-n": ({"best_of": 1, "n": 2}, "best_of"),
    "echo-and-logprobs": ({"echo": True, "logprobs": 0}, "echo"),
    "many-logprobs": ({"logprobs": 21}, "logprobs"),
    "negative-logprobs": ({"logprobs": -1}, "logprobs"),
    "empty-text": ({"prompt": ""}, "prompt"),
    "empty-list": ({"prompt": []}, "prompt"),
    "empty-prompt-in-a-list": ({"prompt": ["a", ""]}, "prompt"),
    "id-outside": ({"prompt": [700]}, "prompt"),
    "id-negative": ({"prompt": [-1]}, "prompt"),
    "id-of-many-digits": ({"prompt": [10**40]}, "prompt"),
    "too-long": ({"prompt": "x" * 1020}, "prompt"),
    "too-long-for-the-loop": ({"prompt": "x" * 9000}, "prompt"),
}
CHAT = {
    "no-messages": ({"messages": []}, "messages"),
    "many-messages": ({"messages": HI * 4097}, "messages"),
    "no-content": ({"messages": [{"role": "assistant"}]}, "messages.0.content"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content.0",
    ),
    "audio-part": (
        {"messages": [*HI, {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages.1.content.0",
    ),
    "tool-calls": (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        "messages.0.tool_calls",
    ),
    "name-with-a-control-token": ({"messages": [{**HI[0], "name": "<|end|>"}]}, "messages.0.name"),
    "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    "tool-choice": ({"tool_choice": "required"}, "tool_choice"),
    "functions": ({"functions": [{"name": "f"}]}, "functions"),
    "json-object": ({"response_format": {"type": "json_object"}}, "response_format"),
    "json-schema": ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    "audio": ({"audio": {"voice": "a", "format": "wav"}}, "audio"),
    "modalities": ({"modalities": ["text", "audio"]}, "modalities"),
    "prediction": ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    "reasoning": ({"reasoning_effort": "high"}, "reasoning_effort"),
    "store": ({"store": True}, "store"),
    "two-limits": ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    "no-completion-tokens": ({"max_completion_tokens": 0}, "max_completion_tokens"),
    "top-logprobs-alone": ({"top_logprobs": 2}, "top_logprobs"),
    "many-top-logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "too-long": ({"messages": [{"role": "user", "content": "x" * 1020}], "max_tokens": 9}, "messages"),
}
UNTYPED = {
    "unknown-field": ({"min_p": 0.1}, "min_p"),
    "text-for-a-number": ({"temperature": "1"}, "temperature"),
    "number-for-a-flag": ({"stream": 1}, "stream"),
    "flag-for-a-number": ({"n": True}, "n"),
    "half-a-token": ({"max_tokens": 1.5}, "max_tokens"),
    "number-for-a-name": ({"model": 5}, "model"),
    "unknown-option": ({"stream_options": {"every": 1}}, "stream_options.every"),
    "number-as-stop": ({"stop": 5}, "stop"),
}
UNTYPED_CHAT = {
    "role": ({"messages": [{"role": "poet", "content": "x"}]}, "messages.0.role"),
    "content": ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    "text-for-messages": ({"messages": "Hi"}, "messages"),
    "unknown-key-of-a-message": ({"messages": [{**HI[0], "mood": "good"}]}, "messages.0.mood"),
}
UNTYPED_COMPLETION = {
    "mixed-prompt": ({"prompt": [1, "a"]}, "prompt"),
    "object-as-prompt": ({"prompt": {"a": 1}}, "prompt"),
}


def cases(table):
    return [pytest.param(fields, param, id=name) for name, (fields, param) in table.items()]


@pytest.fixture(scope="module")
def refusal(client):
    """refusal(path, body, exception) -> the exception that the SDK raises."""

    def post(path, body, exception):
        with pytest.raises(exception) as caught:
            client.post(path, cast_to=object, body={"model": "tiny", **body})
        error = caught.value
        assert error.type == "invalid_request_error" and error.message.count("\n") == 0
        assert error.response.headers["x-request-id"] == error.request_id
        return error

    return post


@pytest.mark.parametrize("fields, param", cases({**BOTH, **COMPLETION}))
def test_completions_refuse_a_value_by_the_name_of_its_field(refusal, fields, param):
    error = refusal("/completions", {"prompt": "a", **fields}, openai.BadRequestError)
    assert error.param == param and error.code


@pytest.mark.parametrize("fields, param", cases({**BOTH, **CHAT}))
def test_chat_refuses_a_value_by_the_name_of_its_field(refusal, fields, param):
    error = refusal("/chat/completions", {"messages": HI, **fields}, openai.BadRequestError)
    assert error.param == param and error.code


@pytest.mark.parametrize("fields, param", cases({**UNTYPED, **UNTYPED_CHAT}))
def test_chat_refuses_a_wrong_type_or_name(refusal, fields, param):
    error = refusal("/chat/completions", {"messages": HI, **fields}, openai.UnprocessableEntityError)
    assert error.param == param


@pytest.mark.parametrize("fields, param", cases({**UNTYPED, **UNTYPED_COMPLETION}))
def test_completions_refuse_a_wrong_type_or_name(refusal, fields, param):
    error = refusal("/completions", {"prompt": "a", **fields}, openai.UnprocessableEntityError)
    assert error.param.split(".")[0] == param.split(".")[0]


@pytest.mark.parametrize(
    "path, field", [("/completions", "prompt"), ("/chat/completions", "messages")], ids=["completion", "chat"]
)
def test_a_missing_field_is_named(refusal, path, field):
    error = refusal(path, {}, openai.UnprocessableEntityError)
    assert (error.param, error.code) == (field, "missing_field")


@pytest.mark.parametrize("path", ["/completions", "/chat/completions"])
def test_an_unknown_model_is_not_found(refusal, path):
    body = (
        {"model": "gpt-4o", "prompt": "a"} if path == "/completions" else {"model": "gpt-4o", "messages": HI}
    )
    error = refusal(path, body, openai.NotFoundError)
    assert (error.param, error.code) == ("model", "model_not_found") and "tiny" in error.message


@pytest.mark.parametrize("path", ["/completions", "/chat/completions"])
def test_what_exceeds_the_context_says_so(refusal, path):
    long = "x" * 1020
    body = {"prompt": long} if path == "/completions" else {"messages": [{"role": "user", "content": long}]}
    error = refusal(path, {**body, "max_tokens": 9}, openai.BadRequestError)
    assert error.code == "context_length_exceeded" and "1024" in error.message


def test_a_refused_stream_has_a_status_and_no_events(refusal):
    error = refusal("/completions", {"prompt": "a", "stream": True, "n": 0}, openai.BadRequestError)
    assert error.response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "raw, status",
    [
        (b'{"model": "tiny", "prompt": ', 400),
        (b'["tiny"]', 400),
        (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', 400),
        (b'{"model": "tiny", "prompt": "\xff"}', 400),
        (b'{"model": "tiny", "prompt": "\\ud800"}', 400),
    ],
    ids=["cut-off", "array", "nan", "not-utf-8", "half-a-pair"],
)
def test_a_body_that_is_no_json_has_this_faces_shape(http, raw, status):
    reply = http.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert reply.status_code == status
    assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


def test_an_unknown_path_has_this_faces_shape(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="tiny", input="a")
    assert caught.value.code == "no_path"


def test_a_wrong_method_has_this_faces_shape(http):
    reply = http.get("/v1/completions")
    assert (reply.status_code, reply.json()["error"]["code"]) == (405, "wrong_method")


@pytest.fixture
def locked(scripted):
    """(OpenAI without the key, Server) of a service with a key and little room for bodies."""
    client, server, _ = scripted("abc", settings=Settings("tiny", api_key="secret", max_body=1000))
    return client, server


def test_only_the_right_key_is_let_in(locked):
    client, server = locked
    with pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.type == "authentication_error"
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert client.with_options(api_key="secret").models.list().data[0].id == "tiny"


def test_a_body_that_is_too_large_is_a_status_error(locked):
    client = locked[0].with_options(api_key="secret")
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="tiny", prompt="x" * 2000)
    assert (caught.value.status_code, caught.value.code) == (413, "too_large")
