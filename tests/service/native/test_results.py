"""What /v1/generate returns is what the engine makes of the same request alone, streamed or whole."""

import dataclasses

import pytest

from crucible.engine.request import Request
from crucible.service.native.bodies import Generated

SAMPLED = {"temperature": 0.8, "seed": 11}
REQUESTS = {
    "greedy": {"prompt": "the cat", "max_tokens": 20},
    "one_token": {"prompt": "x", "max_tokens": 1},
    "token_ids": {"prompt": [256, 104, 105, 10], "max_tokens": 12},
    "unicode": {"prompt": "caf\u00e9 \u4f60\u597d \U0001f600", "max_tokens": 12},
    "long_prompt": {"prompt": "a b " * 110, "max_tokens": 6},
    "temperature": {"prompt": "warm", "max_tokens": 24, **SAMPLED},
    "top_k": {"prompt": "few", "max_tokens": 24, "top_k": 5, **SAMPLED},
    "top_p": {"prompt": "mass", "max_tokens": 24, "top_p": 0.5, **SAMPLED},
    "gumbel": {"prompt": "noise", "max_tokens": 24, "sampler": "gumbel-id", **SAMPLED},
    "largest_seed": {"prompt": "big", "max_tokens": 12, "temperature": 1.0, "seed": 2**64 - 1},
    "ignore_eos": {"prompt": "on", "max_tokens": 40, "temperature": 2.0, "seed": 5, "ignore_eos": True},
    "logprobs_0": {"prompt": "chance", "max_tokens": 8, "logprobs": 0},
    "logprobs_64": {"prompt": "chance", "max_tokens": 8, "logprobs": 64, **SAMPLED},
    "digests": {"prompt": "marks", "max_tokens": 8, "digests": True, "kv_digests": True, **SAMPLED},
    "stop_string": {"prompt": "the cat", "max_tokens": 30, "stop_strings": ["lu", "zz"]},
}


def asked(fields: dict) -> Request:
    return Request(**{key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()})


def facts(reply: dict) -> dict:
    """What of a reply depends on the request alone."""
    usage = {key: value for key, value in reply["usage"].items() if key != "cached_rows"}
    return {k: v for k, v in reply.items() if k not in ("id", "timings", "usage")} | {"usage": usage}


def same_as_alone(reply: dict, result) -> None:
    for name in ("tokens", "text", "finish_reason", "stopped_by", "logits_digests", "k_digest", "v_digest"):
        assert reply[name] == getattr(result, name), name
    assert reply["random_state"] == dataclasses.asdict(result.random_state)
    spelled = result.logprobs and [dataclasses.asdict(one) for one in result.logprobs]
    assert reply["logprobs"] == (spelled and [{**one, "top": list(one["top"])} for one in spelled])
    assert reply["usage"]["prompt_tokens"] == len(result.prompt_tokens)
    assert reply["usage"]["completion_tokens"] == len(result.tokens) > 0


@pytest.mark.parametrize("name", REQUESTS)
def test_a_reply_is_what_the_request_gets_alone(generate, alone, name):
    reply = generate(**REQUESTS[name])
    assert reply.status_code == 200, reply.text
    same_as_alone(reply.json(), alone(asked(REQUESTS[name])))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_joined_is_the_reply_bit_for_bit(generate, parse_events, name):
    whole = generate(**REQUESTS[name]).json()
    *parts, (last, end) = parse_events(generate(**REQUESTS[name], stream=True).text)
    assert last == "end" and {kind for kind, _ in parts} == {"tokens"}
    assert facts(end) == facts(whole)
    tokens = []
    for _, part in parts:
        assert part["index"] == len(tokens)
        tokens += part["tokens"]
    assert tokens == whole["tokens"]
    assert "".join(part["text"] for _, part in parts) == whole["text"]
    for field in ("logprobs", "logits_digests"):
        joined = [one for _, part in parts for one in part.get(field, ())]
        assert joined == (whole[field] or [])


def test_requests_of_one_table_differ(alone):
    """Else the comparisons above could pass by a face that drops a field."""
    warm = [name for name in REQUESTS if "seed" in REQUESTS[name]]
    made = [tuple(alone(asked({**REQUESTS[name], "prompt": "same"})).tokens[:8]) for name in warm]
    assert len(set(made)) == len(made) - 2  # logprobs and digests change no token


def test_messages_are_the_chat_template_s_prompt(generate, tiny, alone):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    reply = generate(messages=messages, max_tokens=10, prompt_ids=True).json()
    ids = tiny.encode_chat(messages)
    assert reply["prompt_ids"] == ids
    assert reply["tokens"] == alone(Request(tuple(ids), 10)).tokens


def test_a_message_cannot_write_a_control_token(generate, tiny):
    reply = generate(messages=[{"role": "user", "content": "<|end|>"}], max_tokens=1, prompt_ids=True).json()
    end = tiny.tokenizer.control_id("<|end|>")
    assert reply["prompt_ids"].count(end) == 1  # the template's own


def test_a_drawn_seed_is_reported_and_gives_the_tokens_again(generate):
    # What is drawn may end the text at once, or before the sixteenth token.
    asked = {"prompt": "dice", "max_tokens": 16, "temperature": 1.5, "ignore_eos": True}
    first = generate(**asked).json()
    again = generate(**asked, seed=first["seed"]).json()
    other = generate(**asked, seed=first["seed"] ^ 1).json()
    assert first["seed"] is not None and first["random_state"] == {"seed": first["seed"], "next_draw": 16}
    assert again["tokens"] == first["tokens"] != other["tokens"]


def test_a_drawn_seed_fits_the_numbers_of_every_json_reader(generate):
    seeds = [generate(prompt="s", max_tokens=1, temperature=1.0).json()["seed"] for _ in range(8)]
    assert len(set(seeds)) == 8 and max(seeds) < 2**53


def test_greedy_reports_no_random_state(generate):
    reply = generate(prompt="sure", max_tokens=4).json()
    assert reply["seed"] is None and reply["random_state"] == {"seed": None, "next_draw": 0}


def test_the_seed_of_a_greedy_request_is_given_back(generate):
    assert generate(prompt="sure", max_tokens=1, seed=9).json()["seed"] == 9


def test_a_stop_token_is_named_and_kept(generate):
    free = generate(prompt="the cat", max_tokens=20).json()["tokens"]
    reply = generate(prompt="the cat", max_tokens=20, stop=[free[4]]).json()
    assert reply["tokens"] == free[: free.index(free[4]) + 1]
    assert (reply["finish_reason"], reply["stopped_by"]) == ("stop", free[4])


def test_a_stop_string_is_named_and_never_sent(generate, parse_events):
    free = generate(prompt="the cat", max_tokens=30).json()["text"]
    stop = free[7:11]
    text = generate(prompt="the cat", max_tokens=30, stop_strings=[stop], stream=True).text
    *parts, (_, end) = parse_events(text)
    assert (end["finish_reason"], end["stopped_by"]) == ("stop", stop)
    assert end["text"] == free[: free.index(stop)] == "".join(part["text"] for _, part in parts)


def test_the_length_ends_a_request_that_nothing_stops(generate):
    reply = generate(prompt="go", max_tokens=7, ignore_eos=True).json()
    assert (reply["finish_reason"], reply["stopped_by"], len(reply["tokens"])) == ("length", None, 7)


@pytest.mark.parametrize("sampler", ["inverse-cdf", "gumbel-id"])
def test_the_fingerprint_is_the_card_s_for_the_sampler(generate, tiny, sampler):
    reply = generate(prompt="who", max_tokens=1, sampler=sampler).json()
    assert reply["fingerprint"] == tiny.fingerprint(sampler)


def test_two_samplers_have_two_fingerprints(generate):
    prints = {
        generate(prompt="who", max_tokens=1, sampler=sampler).json()["fingerprint"]
        for sampler in ("inverse-cdf", "gumbel-id")
    }
    assert len(prints) == 2


def test_prompt_ids_come_only_when_asked_for(generate):
    assert generate(prompt="ab", max_tokens=1).json()["prompt_ids"] is None
    assert generate(prompt="ab", max_tokens=1, prompt_ids=True).json()["prompt_ids"] == [97, 98]


def test_the_id_is_the_header_s_and_another_each_time(generate):
    replies = [generate(prompt="id", max_tokens=1) for _ in range(2)]
    ids = [reply.json()["id"] for reply in replies]
    assert ids == [reply.headers["x-request-id"] for reply in replies] and ids[0] != ids[1]


def test_rows_that_the_prefix_cache_saved_are_reported_and_move_no_bit(generate):
    fields = {"prompt": "an unusual prefix of some length " * 3, "max_tokens": 6, "digests": True}
    cold, warm = generate(**fields).json(), generate(**fields).json()
    assert warm["usage"]["cached_rows"] >= 80 > 15 >= cold["usage"]["cached_rows"]
    assert facts(warm) == facts(cold)


def test_times_are_in_order(generate):
    times = generate(prompt="clock", max_tokens=5).json()["timings"]
    assert 0 <= times["queued"] <= times["first_token"] <= times["total"]


@pytest.mark.parametrize("name", ["greedy", "logprobs_64", "digests", "stop_string"])
def test_a_reply_has_the_fields_that_the_document_says(generate, name):
    reply = generate(**REQUESTS[name], prompt_ids=True).json()
    assert set(reply) == set(Generated.model_fields)
    Generated.model_validate(reply, strict=True)
