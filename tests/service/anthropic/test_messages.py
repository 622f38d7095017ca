"""POST /v1/messages: the engine's own tokens in Anthropic's shape, whatever the conversation and sampling."""

import pytest

from crucible.engine.request import Request


def ended_by_the_model(alone, meant) -> tuple[int, Request]:
    """A seed with which the tiny model ends its answer by itself."""
    for seed in range(200):
        request = meant("Hello", seed=seed, max_tokens=60)
        if alone(request).finish_reason == "stop":
            return seed, request
    raise AssertionError("no seed ends the answer")


def test_the_text_is_the_engines_own(ask, alone, meant, sampling):
    reply = ask("Hello", **sampling)
    expected = alone(meant("Hello", **sampling))
    assert [block.text for block in reply.content] == [expected.text]
    assert reply.usage.output_tokens == len(expected.tokens)


def test_a_conversation_is_what_the_template_makes_of_its_turns(ask, alone, meant, talk):
    reply = ask(**talk.fields, seed=3)
    expected = alone(meant(talk.turns, talk.continued, seed=3))
    assert reply.content[0].text == expected.text
    assert reply.usage.input_tokens == len(expected.prompt_tokens)


def test_a_message_has_every_field_of_the_api(http, asked):
    reply = http.post("/v1/messages", json=asked("Hello", seed=1)).json()
    of_the_api = {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
    assert set(reply) == of_the_api | {"seed", "fingerprint"}
    assert (reply["type"], reply["role"], reply["model"]) == ("message", "assistant", "tiny")
    assert [set(block) for block in reply["content"]] == [{"type", "text"}]
    assert set(reply["usage"]) == {
        "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
    }  # fmt: skip


def test_the_openapi_document_describes_the_reply(http, asked):
    from crucible.service.anthropic.schemas import Answer

    reply = http.post("/v1/messages", json=asked("Hello", seed=1, digests=True)).json()
    assert Answer.model_validate(reply).model_dump() == reply
    described = http.get("/openapi.json").json()["paths"]["/v1/messages"]["post"]["responses"]
    assert described["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Answer")
    assert "422" not in described


def test_ids_are_those_of_the_request(ask):
    first, second = ask("Hello"), ask("Hello")
    assert first.id == first._request_id.replace("req_", "msg_") and first.id.startswith("msg_")
    assert first.id != second.id


def test_both_request_id_headers_agree(http, asked):
    headers = http.post("/v1/messages", json=asked("Hello")).headers
    assert headers["request-id"] == headers["x-request-id"]


def test_an_answer_that_the_model_ends_is_end_turn(ask, alone, meant):
    seed, request = ended_by_the_model(alone, meant)
    reply = ask("Hello", seed=seed, max_tokens=60)
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    assert reply.content[0].text == alone(request).text


def test_an_answer_goes_on_past_its_end_where_that_is_asked_for(ask, alone, meant):
    seed, _ = ended_by_the_model(alone, meant)
    reply = ask("Hello", seed=seed, max_tokens=60, ignore_eos=True)
    assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 60)


def test_an_answer_of_max_tokens_says_so(ask):
    reply = ask("Hello", seed=5, max_tokens=3)
    assert (reply.stop_reason, reply.stop_sequence, reply.usage.output_tokens) == ("max_tokens", None, 3)


def test_a_stop_sequence_ends_the_answer_and_is_named(ask, alone, meant):
    text = alone(meant("Hello", seed=1, max_tokens=20)).text
    stop = text[5:8]
    reply = ask("Hello", seed=1, max_tokens=20, stop_sequences=["never to be", stop])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop)
    assert reply.content[0].text == text[: text.index(stop)]
    expected = alone(meant("Hello", seed=1, max_tokens=20, stop_strings=("never to be", stop)))
    assert reply.usage.output_tokens == len(expected.tokens)


def test_a_stop_sequence_that_never_comes_changes_nothing(ask):
    plain, stopped = ask("Hello", seed=1), ask("Hello", seed=1, stop_sequences=["never to be"])
    assert (plain.content, stopped.stop_reason) == (stopped.content, "max_tokens")


def test_an_answer_may_be_empty(ask, alone, meant):
    first = alone(meant("Hello", seed=1)).text[0]
    reply = ask("Hello", seed=1, stop_sequences=[first])
    assert [block.text for block in reply.content] == [""]
    assert reply.stop_reason == "stop_sequence"


def test_a_drawn_seed_is_reported_and_gives_the_answer_again(ask):
    first = ask("Hello")
    assert first.seed is not None
    assert ask("Hello", seed=first.seed).content == first.content


def test_two_drawn_seeds_differ(ask):
    assert ask("Hello").seed != ask("Hello").seed


def test_greedy_needs_no_seed(ask):
    first, second = ask("Hello", temperature=0), ask("Hello", temperature=0)
    assert first.seed is None and first.content == second.content


@pytest.mark.parametrize("given", [None, 77, 2**64 - 1])
def test_the_seed_is_in_a_header(client, arguments, asked, given):
    raw = client.messages.with_raw_response.create(**arguments(asked("Hello", seed=given)))
    assert int(raw.headers["x-crucible-seed"]) == raw.parse().seed
    assert given in (None, raw.parse().seed)


def test_no_seed_is_in_no_header(http, asked):
    assert "x-crucible-seed" not in http.post("/v1/messages", json=asked("Hello", temperature=0)).headers


def test_digests_are_those_of_the_engine(ask, alone, meant):
    expected = alone(meant("Hello", seed=2, digests=True)).logits_digests
    assert ask("Hello", seed=2, digests=True).logits_digests == expected and len(expected) == 10


def test_the_fingerprint_names_the_sampler(ask, tiny):
    for sampler in ("inverse-cdf", "gumbel-id"):
        assert ask("Hello", max_tokens=1, sampler=sampler).fingerprint == tiny.fingerprint(sampler)


def test_an_answer_goes_into_the_next_request_as_it_came(ask, alone, meant):
    first = ask("Hello", seed=3)
    messages = [{"role": "user", "content": "Hello"}, first.to_param(), {"role": "user", "content": "And?"}]
    turns = [messages[0], {"role": "assistant", "content": first.content[0].text}, messages[2]]
    assert ask(messages, seed=4).content[0].text == alone(meant(turns, seed=4)).text


def test_an_answer_that_was_streamed_goes_into_the_next_request(ask, stream):
    with stream("Hello", seed=3) as events:
        first = events.get_final_message()
    messages = [{"role": "user", "content": "Hello"}, first.to_param(), {"role": "user", "content": "And?"}]
    assert (
        ask(messages, seed=4).content
        == ask(
            [messages[0], {"role": "assistant", "content": first.content[0].text}, messages[2]], seed=4
        ).content
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "somebody"}},
        {"metadata": {}},
        {"tools": []},
        {"tool_choice": {"type": "none"}},
        {"tool_choice": {"type": "auto"}},
        {"thinking": {"type": "disabled"}},
        {"service_tier": "auto"},
        {"service_tier": "standard_only"},
        {"cache_control": {"type": "ephemeral"}},
        {"stop_sequences": []},
        {"output_config": {}},
        {"output_config": {"format": None, "effort": None}},
        {"diagnostics": {"previous_message_id": None}},
        {"speed": "standard"},
        {"inference_geo": None, "container": None},
        {"mcp_servers": [], "context_management": None},
        {"temperature": None, "top_p": None, "top_k": None, "sampler": None, "digests": None},
        {"top_k": 0, "top_p": 1, "temperature": 1},
        {"stream": False},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_a_field_that_changes_nothing_is_taken(ask, fields):
    assert ask("Hello", seed=6, **fields).content == ask("Hello", seed=6).content


@pytest.mark.parametrize("version", [None, "2023-06-01", "2026-10-21"])
def test_every_served_version_gives_the_same_answer(tiny_server, http, asked, version):
    import httpx

    headers = {} if version is None else {"anthropic-version": version}
    reply = httpx.post(f"{tiny_server.url}/v1/messages", json=asked("Hello", seed=6), headers=headers).json()
    assert reply["content"] == http.post("/v1/messages", json=asked("Hello", seed=6)).json()["content"]


def test_beta_clients_are_answered_too(client, arguments, asked, ask):
    reply = client.beta.messages.create(**arguments(asked("Hello", seed=6)))
    assert reply.content[0].text == ask("Hello", seed=6).content[0].text
