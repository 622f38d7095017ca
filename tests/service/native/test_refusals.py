"""Requests that the native face refuses: each with its status, a short name and the field."""

import pytest

OK = {"prompt": "x", "max_tokens": 1}
HI = [{"role": "user", "content": "hi"}]
WRONG = {
    "neither_prompt_nor_messages": ({"prompt": None}, "prompt", "one_of_two"),
    "prompt_and_messages": ({"messages": HI}, "prompt", "one_of_two"),
    "prompt_a_number": ({"prompt": 5}, "prompt", "invalid_value"),
    "prompt_an_object": ({"prompt": {}}, "prompt", "invalid_value"),
    "prompt_of_texts": ({"prompt": ["a"]}, "prompt.0", "invalid_value"),
    "prompt_of_floats": ({"prompt": [1, 2.0]}, "prompt.1", "invalid_value"),
    "prompt_of_booleans": ({"prompt": [1, True]}, "prompt.1", "invalid_value"),
    "negative_token": ({"prompt": [-1]}, "prompt.0", "invalid_value"),
    "huge_token": ({"prompt": [10**30]}, "prompt.0", "invalid_value"),
    "messages_empty": ({"prompt": None, "messages": []}, "messages", "invalid_value"),
    "message_without_role": (
        {"prompt": None, "messages": [{"content": "x"}]},
        "messages.0.role",
        "missing_field",
    ),
    "message_of_a_strange_role": (
        {"prompt": None, "messages": [*HI, {"role": "judge", "content": "x"}]},
        "messages.1.role",
        "invalid_value",
    ),
    "message_with_a_name": (
        {"prompt": None, "messages": [{**HI[0], "name": "eve"}]},
        "messages.0.name",
        "unknown_field",
    ),
    "message_of_parts": (
        {"prompt": None, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        "messages.0.content",
        "invalid_value",
    ),
    "unknown_field": ({"presence_penalty": 1.0}, "presence_penalty", "unknown_field"),
    "neutral_unknown_field": ({"presence_penalty": 0}, "presence_penalty", "unknown_field"),
    "max_tokens_0": ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    "max_tokens_fraction": ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
    "max_tokens_text": ({"max_tokens": "5"}, "max_tokens", "invalid_value"),
    "max_tokens_boolean": ({"max_tokens": True}, "max_tokens", "invalid_value"),
    "max_tokens_null": ({"max_tokens": None}, "max_tokens", "invalid_value"),
    "temperature_negative": ({"temperature": -0.1}, "temperature", "invalid_value"),
    "temperature_beyond_f32": ({"temperature": 1e39}, "temperature", "invalid_value"),
    "temperature_text": ({"temperature": "1"}, "temperature", "invalid_value"),
    "top_k_negative": ({"top_k": -1}, "top_k", "invalid_value"),
    "top_p_0": ({"top_p": 0}, "top_p", "invalid_value"),
    "top_p_above_1": ({"top_p": 1.0000001}, "top_p", "invalid_value"),
    "seed_negative": ({"seed": -1}, "seed", "invalid_value"),
    "seed_of_65_bits": ({"seed": 2**64}, "seed", "invalid_value"),
    "seed_of_30_digits": ({"seed": 10**30}, "seed", "invalid_value"),
    "seed_fraction": ({"seed": 1.0}, "seed", "invalid_value"),
    "sampler_unknown": ({"sampler": "nucleus"}, "sampler", "invalid_value"),
    "stop_no_list": ({"stop": 5}, "stop", "invalid_value"),
    "stop_of_texts": ({"stop": ["."]}, "stop.0", "invalid_value"),
    "stop_strings_no_list": ({"stop_strings": "."}, "stop_strings", "invalid_value"),
    "stop_string_empty": ({"stop_strings": ["a", ""]}, "stop_strings.1", "invalid_value"),
    "stop_string_too_long": ({"stop_strings": ["x" * 257]}, "stop_strings.0", "invalid_value"),
    "too_many_stop_strings": ({"stop_strings": ["x"] * 17}, "stop_strings", "invalid_value"),
    "logprobs_65": ({"logprobs": 65}, "logprobs", "invalid_value"),
    "logprobs_negative": ({"logprobs": -1}, "logprobs", "invalid_value"),
    "stream_a_number": ({"stream": 1}, "stream", "invalid_value"),
    "digests_text": ({"digests": "yes"}, "digests", "invalid_value"),
}
# Well-formed, but this model cannot take them.
UNFIT = {
    "beyond_the_context": ({"max_tokens": 1024}, "context of 1024"),
    "prompt_beyond_the_context": ({"prompt": [1] * 1100}, "context of 1024"),
    "prompt_empty_text": ({"prompt": ""}, "prompt is empty"),
    "prompt_empty_list": ({"prompt": []}, "prompt is empty"),
    "token_outside_the_vocabulary": ({"prompt": [5, 700]}, "outside the vocabulary of 700"),
    "stop_outside_the_vocabulary": ({"stop": [700]}, "outside the vocabulary of 700"),
    "temperature_below_f32": ({"temperature": 1e-60}, "does not fit float32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_a_422_that_names_it(generate, name):
    change, param, code = WRONG[name]
    reply = generate(**OK | change)
    assert reply.status_code == 422, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["code"], error["status"]) == (param, code, 422)
    assert param in error["message"] and "\n" not in error["message"]


@pytest.mark.parametrize("name", UNFIT)
def test_what_this_model_cannot_take_is_a_400_that_says_why(generate, name):
    change, why = UNFIT[name]
    reply = generate(**OK | change)
    assert reply.status_code == 400, reply.text
    assert why in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_has_its_status_before_a_stream_begins(generate, stream):
    reply = generate(**OK | {"max_tokens": 5000, "stream": stream})
    assert reply.status_code == 400 and reply.headers["content-type"] == "application/json"


def test_a_refusal_quotes_no_text_of_the_client(generate):
    reply = generate(**OK | {"max_tokens": "my secret"})
    assert reply.status_code == 422 and "secret" not in reply.text


def test_a_refusal_tells_its_request_s_id(generate):
    reply = generate(**OK | {"top_p": 7})
    assert reply.json()["request_id"] == reply.headers["x-request-id"]


def test_the_limit_is_in_the_sentence(generate):
    assert generate(**OK | {"top_p": 7}).json()["error"]["message"] == "top_p 7 must be at most 1.0"


def test_a_model_without_a_chat_template_says_so(serve, tiny, monkeypatch):
    monkeypatch.setattr(tiny, "chat_template", None)
    server = serve(tiny)
    reply = server.post("/v1/generate", json={"messages": HI})
    assert reply.status_code == 400 and "no chat template" in reply.json()["error"]["message"]
    assert server.post("/v1/generate", json=OK).status_code == 200


@pytest.mark.parametrize("kind", ["QueueFull", "RequestError", "EngineStopped"])
def test_a_stream_that_fails_ends_with_an_error_event(kind):
    from crucible.engine import events
    from crucible.service.failure import failure_of
    from crucible.service.native import error_body, sse_error

    failure = failure_of(getattr(events, kind)("it broke"))
    text = sse_error(failure, "req_1").decode()
    assert text.startswith("event: error\ndata: {") and text.endswith("}\n\n") and "it broke" in text
    status = {"QueueFull": 429, "RequestError": 500, "EngineStopped": 503}[kind]
    assert error_body(failure, "req_1")["error"]["status"] == status
