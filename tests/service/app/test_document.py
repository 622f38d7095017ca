"""The OpenAPI document: every path, every status that a request can get, and nothing that is not there."""

import pytest

STATUSES = {"200", "400", "401", "408", "413", "415", "422", "429", "500", "503"}


@pytest.fixture(scope="module")
def document(tiny_server) -> dict:
    return tiny_server.get("/openapi.json").json()


def test_a_generating_path_tells_every_status_that_it_gives(document, face):
    operation = document["paths"][face.path]["post"]
    told = set(operation["responses"])
    assert told >= STATUSES or "default" in told
    assert operation["summary"]


def test_a_reply_has_the_kinds_of_content_that_are_told(document, tiny_server, post, face):
    told = document["paths"][face.path]["post"]["responses"]["200"]["content"]
    assert set(told) == {"application/json", "text/event-stream"}
    for body in (face.body, {**face.body, "stream": True}):
        assert post(tiny_server, face, json=body).headers["content-type"].split(";")[0] in told


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/stats"])
def test_a_page_has_the_kind_of_content_that_is_told(document, tiny_server, path):
    told = document["paths"][path]["get"]["responses"]["200"]["content"]
    assert tiny_server.get(path).headers["content-type"].split(";")[0] in told


def test_a_body_s_schema_takes_no_other_field(document, face):
    schema = document["paths"][face.path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    found = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    assert found["additionalProperties"] is False
    assert set(face.body) <= set(found["properties"])


def test_the_framework_s_own_error_is_nowhere(document):
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_no_page_loads_scripts_from_elsewhere(tiny_server, path):
    assert tiny_server.get(path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/nowhere", 404),
        ("POST", "/v1/generate/", 404),
        ("GET", "/v1/generate", 405),
        ("DELETE", "/v1/messages", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("OPTIONS", "/v1/completions", 405),
        ("POST", "/health/live", 405),
    ],
)
def test_a_wrong_path_or_method_is_answered_in_a_face_s_shape(tiny_server, method, path, status):
    headers = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    reply = tiny_server.client.request(method, path, headers=headers)
    assert reply.status_code == status and reply.json()["error"]["message"]
    assert ("allow" in reply.headers) == (status == 405)
    assert reply.headers["x-request-id"].startswith("req_")
    assert not [name for name in reply.headers if name == "server" or name.startswith("access-control")]
