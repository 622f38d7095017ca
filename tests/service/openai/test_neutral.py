"""Fields that this service lacks: at the value that changes nothing they change nothing."""

import pytest

BOTH = {
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "user": "somebody",
    "stream_options": None,
}
CHAT = {
    "metadata": {"a": "b"},
    "safety_identifier": "u1",
    "prompt_cache_key": "k",
    "store": False,
    "service_tier": "auto",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "functions": [],
    "function_call": "none",
    "reasoning_effort": "none",
    "verbosity": "medium",
    "audio": None,
    "prediction": None,
}
COMPLETION = {"suffix": None, "best_of": 1, "echo": False}


@pytest.fixture(scope="module")
def plain(complete, chat):
    """Texts of both endpoints without any such field."""
    return (
        complete(seed=1, max_tokens=4).choices[0].text,
        chat(seed=1, max_tokens=4).choices[0].message.content,
    )


@pytest.mark.parametrize("name", [*BOTH, *COMPLETION])
def test_a_completion_takes_the_neutral_value(complete, plain, name):
    value = {**BOTH, **COMPLETION}[name]
    assert complete(seed=1, max_tokens=4, **{name: value}).choices[0].text == plain[0]


@pytest.mark.parametrize("name", [*BOTH, *CHAT])
def test_a_chat_takes_the_neutral_value(chat, plain, name):
    value = {**BOTH, **CHAT}[name]
    assert chat(seed=1, max_tokens=4, **{name: value}).choices[0].message.content == plain[1]
