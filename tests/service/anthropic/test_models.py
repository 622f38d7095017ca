"""GET /v1/models in Anthropic's shape, where the header asks for it, and in OpenAI's where it does not."""

import anthropic
import pytest


def test_the_list_holds_the_model(client):
    page = client.models.list()
    assert [model.id for model in page] == ["tiny"]
    assert (page.first_id, page.last_id, page.has_more) == ("tiny", "tiny", False)


def test_a_model_is_described(client, tiny):
    model = client.models.retrieve("tiny")
    assert (model.type, model.id, model.display_name, model.lifecycle) == ("model", "tiny", "tiny", "active")
    assert model.max_input_tokens == tiny.config.context == 1024
    assert (model.chat, model.fingerprint) == (True, tiny.fingerprint())


def test_the_time_is_the_services(client, tiny_server):
    assert int(client.models.retrieve("tiny").created_at.timestamp()) == tiny_server.service.created


def test_list_and_model_agree(client):
    assert next(iter(client.models.list())) == client.models.retrieve("tiny")


def test_beta_clients_list_too(client):
    assert [model.id for model in client.beta.models.list()] == ["tiny"]


@pytest.mark.parametrize("cursor", ["after_id", "before_id"])
def test_before_and_after_the_only_model_there_is_none(client, cursor):
    page = client.models.list(**{cursor: "tiny"})
    assert page.data == [] and page.first_id is None and not page.has_next_page()


@pytest.mark.parametrize(("stages", "count"), [(["active", "retired"], 1), (["retired"], 0)])
def test_the_stage_of_life_filters(client, stages, count):
    assert len(client.models.list(lifecycle=stages).data) == count


@pytest.mark.parametrize("limit", [1, 20, 1000])
def test_a_page_has_a_limit(client, limit):
    assert len(client.models.list(limit=limit).data) == 1


@pytest.mark.parametrize("limit", [0, 1001, -1, "many", "1e3", ""])
def test_a_wrong_limit_is_named(http, limit):
    reply = http.get("/v1/models", params={"limit": limit})
    assert reply.status_code == 400 and reply.json()["error"]["message"].startswith("limit: ")


def test_an_unknown_cursor_is_named(client, refused):
    error = refused(client.models.list, after_id="other")
    assert type(error) is anthropic.BadRequestError and error.api_message.startswith("after_id: 'other'")


@pytest.mark.parametrize("name", ["other", "a/b", "a b", "tiny/", "naïve"])
def test_an_unknown_model_is_not_found(client, refused, name):
    error = refused(client.models.retrieve, name)
    assert type(error) is anthropic.NotFoundError and error.type == "not_found_error"
    assert error.api_message == f"model: there is no model {name!r} here; use 'tiny'"


def test_without_the_header_the_shape_is_openais(tiny_server, http):
    import httpx

    plain = httpx.get(f"{tiny_server.url}/v1/models")
    assert plain.json()["object"] == "list" and "request-id" not in plain.headers
    headed = http.get("/v1/models")
    assert "object" not in headed.json() and "request-id" in headed.headers


def test_another_version_of_the_api_is_refused(http):
    for path in ("/v1/models", "/v1/models/tiny"):
        reply = http.get(path, headers={"anthropic-version": "2023-01-01"})
        assert reply.status_code == 400 and reply.json()["type"] == "error"
