"""The OpenAPI document: replies hold what it says and nothing else, and it tells what is refused."""

import pytest

from crucible.service.openai.documents import ChatCompletion, Completion, ModelList
from crucible.service.openai.unsupported import NEUTRAL

PLAIN = {"model": "tiny", "seed": 1, "n": 2, "max_tokens": 4}
EVERYTHING = {**PLAIN, "return_token_ids": True, "digests": True}
PROMPT = {"prompt": "To be"}
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    "path, model, body",
    [
        ("/v1/completions", Completion, {**PLAIN, **PROMPT}),
        ("/v1/completions", Completion, {**EVERYTHING, **PROMPT, "logprobs": 2}),
        ("/v1/chat/completions", ChatCompletion, {**PLAIN, **MESSAGES}),
        (
            "/v1/chat/completions",
            ChatCompletion,
            {**EVERYTHING, **MESSAGES, "logprobs": True, "top_logprobs": 2},
        ),
    ],
    ids=["completion", "completion-with-everything", "chat", "chat-with-everything"],
)
def test_a_reply_holds_what_the_document_says_and_nothing_else(http, path, model, body):
    reply = http.post(path, json=body).json()
    parsed = model.model_validate(reply, strict=True)
    assert parsed.model_dump(exclude_unset=True) == reply


def test_the_list_of_models_holds_what_the_document_says(http):
    ModelList.model_validate(http.get("/v1/models").json(), strict=True)


@pytest.fixture(scope="module")
def schemas(http):
    """The schemas of the document."""
    return http.get("/openapi.json").json()["components"]["schemas"]


@pytest.mark.parametrize("name", ["CompletionBody", "ChatBody"])
def test_the_document_lists_the_values_of_fields_that_only_have_a_neutral_one(schemas, name):
    fields = schemas[name]["properties"]
    told = {field: fields[field]["enum"] for field in fields.keys() & NEUTRAL.keys()}
    assert told == {field: [*NEUTRAL[field], None] for field in told} and "logit_bias" in told


@pytest.mark.parametrize("name", ["CompletionBody", "ChatBody"])
def test_the_document_permits_no_field_that_is_refused_by_name(schemas, name):
    assert schemas[name]["additionalProperties"] is False
