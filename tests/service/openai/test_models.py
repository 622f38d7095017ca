"""GET /v1/models through the SDK."""

import dataclasses

import openai
import pytest
from openai.types import Model


def test_the_list_holds_the_one_model(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_model_is_found_by_its_name(client):
    assert client.models.retrieve("tiny") == client.models.list().data[0]


def test_a_model_parses_without_coercion(http):
    Model.model_validate(http.get("/v1/models/tiny").json(), strict=True)


def test_a_model_tells_its_context_and_that_it_chats(client, tiny):
    found = client.models.retrieve("tiny")
    assert (found.context, found.chat) == (tiny.config.context, True)


def test_a_model_tells_the_fingerprint_of_its_replies(client, complete):
    assert client.models.retrieve("tiny").system_fingerprint == complete(max_tokens=1).system_fingerprint


@pytest.mark.parametrize("name", ["other", "Tiny", "tiny/extra", "tiny "])
def test_another_name_is_not_found(client, name):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve(name)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_model_without_a_chat_template_says_so_and_completes_the_same(tiny, serve, connected, complete):
    client = connected(serve(dataclasses.replace(tiny, chat_template=None)))
    assert client.models.retrieve("tiny").chat is False
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.code == "no_chat_template" and "/v1/completions" in caught.value.message
    reply = client.completions.create(model="tiny", prompt="To be", seed=1)
    assert reply.choices == complete(seed=1).choices
