"""Log-probabilities in both shapes: the engine's numbers, and no effect on the tokens."""

import pytest

from crucible.engine.request import Request

COUNT = 8


def joined(parts, name) -> list:
    """A field of several chunks' logprobs, end to end."""
    return [one for part in parts for one in part[name]]


@pytest.fixture(scope="module")
def solo(alone, tiny):
    """solo(logprobs, chat=False) -> the engine's Result for the request of every test here."""

    def run(logprobs, chat=False):
        prompt = tuple(tiny.encode_chat([{"role": "user", "content": "Hello"}])) if chat else "To be"
        return alone(Request(prompt, COUNT, temperature=1.0, seed=31, logprobs=logprobs))

    return run


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_token_logprobs_are_the_engines(complete, solo, count):
    found = complete(seed=31, max_tokens=COUNT, logprobs=count).choices[0].logprobs
    assert found.token_logprobs == [step.chosen for step in solo(count).logprobs]


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_top_logprobs_hold_the_likeliest_and_the_chosen(complete, solo, count):
    found = complete(seed=31, max_tokens=COUNT, logprobs=count).choices[0].logprobs
    for step, name, top in zip(solo(count).logprobs, found.tokens, found.top_logprobs, strict=True):
        assert list(top.values())[:count] == [one.logprob for one in step.top]
        assert top[name] == step.chosen and count <= len(top) <= count + 1


@pytest.mark.parametrize("count", [0, 1, 20])
def test_chat_logprobs_are_the_engines(chat, solo, count):
    reply = chat(seed=31, max_tokens=COUNT, logprobs=True, top_logprobs=count)
    content = reply.choices[0].logprobs.content
    expected = solo(count, chat=True).logprobs
    assert [one.logprob for one in content] == [step.chosen for step in expected]
    assert [[top.logprob for top in one.top_logprobs] for one in content] == [
        [top.logprob for top in step.top] for step in expected
    ]


def test_chat_logprobs_spell_every_token_in_bytes(chat, solo, tiny):
    content = chat(seed=31, max_tokens=COUNT, logprobs=True).choices[0].logprobs.content
    spelled = [list(tiny.tokenizer.token_bytes(token)) for token in solo(0, chat=True).tokens]
    assert [one.bytes for one in content] == spelled


def test_the_chosen_token_is_among_the_likeliest_where_it_is_the_likeliest(chat):
    content = chat(temperature=0, max_tokens=COUNT, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    for one in content:
        best = one.top_logprobs[0]
        assert (best.token, best.bytes, best.logprob) == (one.token, one.bytes, one.logprob)


@pytest.mark.parametrize("count", [0, 20])
def test_logprobs_do_not_change_the_text(complete, count):
    plain = complete(seed=31, max_tokens=COUNT).choices[0]
    assert complete(seed=31, max_tokens=COUNT, logprobs=count).choices[0].text == plain.text


def test_without_logprobs_there_are_none(complete, chat):
    assert complete(max_tokens=1).choices[0].logprobs is None
    assert chat(max_tokens=1, logprobs=False).choices[0].logprobs is None


def test_offsets_point_at_the_tokens_in_the_text(saying):
    client, _, _ = saying("ab cd")
    choice = client.completions.create(model="tiny", prompt="x", logprobs=0).choices[0]
    found = choice.logprobs
    assert found.tokens == [*"ab cd", "<|end|>"] and found.text_offset == [0, 1, 2, 3, 4, 5]
    assert "".join(found.tokens[:-1]) == choice.text


def test_tokens_inside_of_a_character_have_its_offset(saying):
    client, _, _ = saying("a€b")
    found = client.completions.create(model="tiny", prompt="x", logprobs=0).choices[0].logprobs
    assert found.tokens == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b", "<|end|>"]
    assert found.text_offset == [0, 1, 1, 1, 2, 3]


def test_a_control_token_has_a_name_and_no_bytes(saying):
    client, _, _ = saying("a")
    messages = [{"role": "user", "content": "Hi"}]
    reply = client.chat.completions.create(model="tiny", messages=messages, logprobs=True)
    last = reply.choices[0].logprobs.content[-1]
    assert (last.token, last.bytes) == ("<|end|>", None)


def test_what_can_never_come_has_a_number_that_json_knows(saying):
    client, _, _ = saying("a")
    messages = [{"role": "user", "content": "Hi"}]
    reply = client.chat.completions.create(model="tiny", messages=messages, logprobs=True, top_logprobs=2)
    assert [top.logprob for top in reply.choices[0].logprobs.content[0].top_logprobs] == [-1.5, -9999.0]


def test_streamed_completion_logprobs_join_to_the_whole(complete, gathered):
    fields = {"seed": 31, "max_tokens": COUNT, "logprobs": 3}
    whole = complete(**fields).choices[0].logprobs.model_dump()
    (one,) = gathered(complete(stream=True, **fields))
    assert {name: joined(one["logprobs"], name) for name in whole} == whole


def test_streamed_chat_logprobs_join_to_the_whole(chat, gathered):
    fields = {"seed": 31, "max_tokens": COUNT, "logprobs": True, "top_logprobs": 3}
    whole = chat(**fields).choices[0].logprobs.model_dump()["content"]
    (one,) = gathered(chat(stream=True, **fields))
    assert joined(one["logprobs"], "content") == whole


def test_a_stream_gives_logprobs_of_tokens_without_text(saying):
    client, _, runner = saying("€")
    runner.gate.clear()
    stream = client.completions.create(model="tiny", prompt="x", logprobs=0, stream=True)
    for text, name in (("", "bytes:\\xe2"), ("", "bytes:\\x82"), ("€", "bytes:\\xac")):
        runner.steps.release()
        choice = next(stream).choices[0]
        assert (choice.text, choice.logprobs.tokens) == (text, [name])
    runner.gate.set()
    assert [chunk.choices[0].finish_reason for chunk in stream] == [None, "stop"]
