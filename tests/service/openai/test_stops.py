"""Stop texts, and characters that several tokens make together."""

import pytest

from crucible.engine.request import Request

TEXT = "One, two; naïve € 你好 😀 end."


@pytest.fixture(params=["whole", "streamed"])
def answer(request, saying, gathered):
    """answer(text, **fields) -> (text, finish_reason) of a model that says `text`, one byte a token."""

    def ask(text, **fields):
        client, _, _ = saying(text)
        messages = [{"role": "user", "content": "Hi"}]
        reply = client.chat.completions.create(
            model="tiny", messages=messages, stream=request.param == "streamed", **fields
        )
        if request.param == "streamed":
            (one,) = gathered(reply)
            return one["text"], one["finish_reason"]
        return reply.choices[0].message.content, reply.choices[0].finish_reason

    return ask


@pytest.mark.parametrize(
    "stop",
    [",", "two;", " end", "ïve", "€ 你", "😀", ["never", "; n"], ["x", "y", "z", "好"]],
    ids=["letter", "word", "last", "in-a-word", "wide", "emoji", "second", "four"],
)
def test_a_stop_text_ends_the_answer_before_it(answer, stop):
    first = next(one for one in ([stop] if isinstance(stop, str) else stop) if one in TEXT)
    assert answer(TEXT, stop=stop) == (TEXT[: TEXT.index(first)], "stop")


def test_of_two_stop_texts_the_one_that_is_complete_first_ends_it(answer):
    assert answer(TEXT, stop=["two; naïve", "wo"]) == ("One, t", "stop")


def test_a_stop_text_that_never_comes_holds_nothing_back_at_the_end(answer):
    assert answer(TEXT, stop="end.!") == (TEXT, "stop")


def test_an_empty_list_stops_nothing(answer):
    assert answer(TEXT, stop=[]) == (TEXT, "stop")


def test_no_character_is_torn(answer):
    assert answer("a😀b你c") == ("a😀b你c", "stop")


def test_a_character_that_stays_unfinished_is_a_replacement(answer):
    assert answer("ab€", max_tokens=4) == ("ab\ufffd", "length")


def test_a_chunk_never_holds_half_a_character(saying):
    client, _, _ = saying("x😀你y")
    chunks = client.completions.create(model="tiny", prompt="a", stream=True)
    assert "\ufffd" not in "".join(chunk.choices[0].text for chunk in chunks)


def test_a_stop_text_across_tokens_is_the_engines_own(complete, alone):
    text = alone(Request("To be", 16, temperature=1.0, seed=1)).text
    stop = text[7:12]
    expected = alone(Request("To be", 16, temperature=1.0, seed=1, stop_strings=(stop,)))
    choice = complete(seed=1, stop=stop).choices[0]
    assert (choice.text, choice.finish_reason) == (expected.text, "stop")
    assert choice.text == text[: text.index(stop)]


def test_usage_counts_tokens_that_a_stop_text_cut_off(saying):
    client, _, _ = saying("abcdef")
    reply = client.completions.create(model="tiny", prompt="a", stop="cd")
    assert (reply.choices[0].text, reply.usage.completion_tokens) == ("ab", 4)
