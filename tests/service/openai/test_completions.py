"""POST /v1/completions through the SDK: what comes back is what the engine returns for the request alone."""

import pytest
from openai.types import Completion

from crucible.engine.request import Request


def test_tokens_are_those_of_the_engine_alone(complete, setting, alone):
    choice = complete("To be", **setting.fields).choices[0]
    expected = alone(setting.meant("To be"))
    assert choice.token_ids == expected.tokens
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason)


def test_any_prompt_is_continued_as_the_engine_does_alone(complete, default, prompt, alone):
    assert complete(prompt, **default.fields).choices[0].token_ids == alone(default.meant(prompt)).tokens


def test_chunks_join_to_the_whole_reply(complete, setting, gathered):
    chunks = gathered(complete(stream=True, **setting.fields))
    whole = complete(**setting.fields).choices[0]
    assert [(one["text"], one["token_ids"], one["finish_reason"]) for one in chunks] == [
        (whole.text, whole.token_ids, whole.finish_reason)
    ]


def test_token_ids_give_what_their_text_gives(complete, tiny, prompt):
    assert complete(tiny.encode(prompt), seed=1).choices == complete(prompt, seed=1).choices


def test_a_list_of_texts_is_answered_prompt_by_prompt(complete):
    prompts = ["To be", "or not", "to be"]
    together = complete(prompts, seed=3).choices
    assert [choice.index for choice in together] == [0, 1, 2]
    assert [choice.text for choice in together] == [complete(one, seed=3).choices[0].text for one in prompts]


def test_a_list_of_token_id_lists_is_answered_prompt_by_prompt(complete, tiny):
    prompts = ["To be", "or not"]
    ids = [tiny.encode(one) for one in prompts]
    assert complete(ids, seed=3).choices == complete(prompts, seed=3).choices


def test_every_prompt_has_its_own_n_choices(complete):
    choices = complete(["To be", "or not"], n=2, seed=3).choices
    apart = [*complete("To be", n=2, seed=3).choices, *complete("or not", n=2, seed=3).choices]
    assert [choice.text for choice in choices] == [choice.text for choice in apart]


@pytest.mark.parametrize("prompt", ["To be", [84, 111], ["To be", "or not"]], ids=["text", "ids", "texts"])
def test_echo_puts_the_prompt_in_front(complete, tiny, prompt):
    several = prompt if isinstance(prompt[0], str) and isinstance(prompt, list) else [prompt]
    texts = [one if isinstance(one, str) else tiny.decode(one) for one in several]
    plain = complete(prompt, seed=4).choices
    assert [one.text for one in complete(prompt, seed=4, echo=True).choices] == [
        text + one.text for text, one in zip(texts, plain, strict=True)
    ]


def test_a_stream_echoes_before_the_first_token(complete):
    first, *rest = complete("To be", seed=4, echo=True, stream=True)
    assert first.choices[0].text == "To be"
    assert "".join(c.choices[0].text for c in rest) == complete("To be", seed=4).choices[0].text


def test_sixteen_tokens_are_the_default(complete):
    assert complete(seed=1).usage.completion_tokens == 16


def test_null_is_the_same_as_leaving_a_field_out(http, complete):
    names = ("max_tokens", "temperature", "top_p", "top_k", "n", "stop", "stream", "logprobs", "echo")
    body = {"model": "tiny", "prompt": "To be", "seed": 1, **dict.fromkeys(names)}
    assert (
        http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        == complete(seed=1).choices[0].text
    )


def test_a_reply_parses_without_coercion(http):
    body = {"model": "tiny", "prompt": "To be", "logprobs": 3, "n": 2}
    parsed = Completion.model_validate(http.post("/v1/completions", json=body).json(), strict=True)
    assert parsed.object == "text_completion" and parsed.model == "tiny"


def test_usage_counts_each_prompt_once(complete, tiny):
    usage = complete(["To be", "or not"], n=3, max_tokens=4, extra_body={"ignore_eos": True}).usage
    assert usage.prompt_tokens == len(tiny.encode("To be")) + len(tiny.encode("or not"))
    assert usage.completion_tokens == 2 * 3 * 4
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_usage_tells_what_the_prefix_cache_saved(complete):
    prompt = "The same long words come again. " * 4
    complete(prompt, max_tokens=1)
    usage = complete(prompt, max_tokens=1).usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_a_stop_token_ends_the_text(complete, alone):
    tokens = alone(Request("To be", 16, temperature=1.0, seed=1)).tokens
    reply = complete(seed=1, extra_body={"stop_token_ids": [tokens[5]], "return_token_ids": True})
    expected = alone(Request("To be", 16, temperature=1.0, seed=1, stop=(tokens[5],)))
    choice = reply.choices[0]
    assert (choice.token_ids, choice.finish_reason) == (expected.tokens, "stop")
    assert reply.usage.completion_tokens == len(expected.tokens) <= 6


def test_digests_are_those_of_the_engine_alone(complete, alone):
    expected = alone(Request("To be", 6, temperature=1.0, seed=2, digests=True)).logits_digests
    choice = complete(seed=2, max_tokens=6, extra_body={"digests": True}).choices[0]
    assert choice.logits_digests == expected and len(set(expected)) == 6


def test_streamed_digests_are_those_of_the_whole_reply(complete, gathered):
    fields = {"seed": 2, "max_tokens": 6, "extra_body": {"digests": True}}
    (streamed,) = gathered(complete(stream=True, **fields))
    assert streamed["digests"] == complete(**fields).choices[0].logits_digests


def test_the_prompts_ids_come_back_where_asked_for(complete, tiny):
    choice = complete("naïve", extra_body={"return_token_ids": True}).choices[0]
    assert choice.prompt_token_ids == tiny.encode("naïve")


@pytest.mark.parametrize("name", ["token_ids", "prompt_token_ids", "logits_digests"])
def test_what_nobody_asked_for_is_left_out(complete, name):
    assert not hasattr(complete().choices[0], name)


def test_the_fingerprint_is_the_cards(complete, tiny):
    assert complete(max_tokens=1).system_fingerprint == tiny.fingerprint()


def test_another_sampler_has_another_fingerprint(complete, tiny):
    reply = complete(max_tokens=1, extra_body={"sampler": "gumbel-id"})
    assert reply.system_fingerprint == tiny.fingerprint("gumbel-id") != tiny.fingerprint()


def test_ids_of_replies_differ_and_name_the_request(client):
    raw = [client.completions.with_raw_response.create(model="tiny", prompt="a", max_tokens=1) for _ in "ab"]
    ids = [one.parse().id for one in raw]
    assert ids[0] != ids[1]
    assert [one.headers["x-request-id"].removeprefix("req_") for one in raw] == [
        one.removeprefix("cmpl-") for one in ids
    ]
