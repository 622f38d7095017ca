"""schemathesis asks what the OpenAPI document allows and what it forbids: it tells of every answer."""

import os

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

# A document cannot say that a prompt fits the context, or that 8.0 is no whole number here: what it allows
# may still be refused, but only with an answer that it tells of.
LEFT_OUT = [positive_data_acceptance]
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "8"))
PATHS = {
    "/v1/generate": "post",
    "/v1/tokenize": "post",
    "/v1/detokenize": "post",
    "/v1/completions": "post",
    "/v1/chat/completions": "post",
    "/v1/messages": "post",
    "/v1/messages/count_tokens": "post",
    "/v1/models": "get",
    "/v1/models/{name}": "get",
    "/health/live": "get",
    "/health/ready": "get",
    "/stats": "get",
}


@pytest.fixture(scope="module")
def document(tiny_server):
    """The document of a running service."""
    return schemathesis.openapi.from_url(tiny_server.url + "/openapi.json")


def test_every_path_of_the_document_is_asked(document):
    told = {(operation.ok().path, operation.ok().method) for operation in document.get_all_operations()}
    assert told - {("/metrics", "get")} == set(PATHS.items())


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize("path", PATHS)
def test_the_document_tells_of_every_answer(document, tiny_server, path, mode):
    operation = document[path][PATHS[path]]
    if mode == GenerationMode.NEGATIVE and PATHS[path] == "get":
        pytest.skip("a request without a body cannot be wrong: every text may be a name")

    @hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("max_tokens"), int):
            case.body["max_tokens"] = min(case.body["max_tokens"], 4)
        case.call_and_validate(timeout=60, excluded_checks=LEFT_OUT)

    ask()
    tiny_server.quiet()
    tiny_server.idle()
    assert tiny_server.get("/health/ready").status_code == 200
