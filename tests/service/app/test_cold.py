"""A temperature that a logit divided by it overflows is the client's value, though only the logits tell."""

import json

import pytest

COLD = 1e-45  # a float32; all but logits of 0 are beyond one when divided by it


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_temperature_that_overflows_a_logit_is_the_client_s_value(tiny_server, post, face, stream):
    server, before = tiny_server, tiny_server.engine.stats().totals.failed
    reply = post(server, face, json={**face.body, "temperature": COLD, "stream": stream})
    if stream:
        assert reply.status_code == 200
        error = json.loads(reply.text.strip().split("\n\n")[-1].split("data: ")[1])["error"]
    else:
        assert reply.status_code == 400
        error = reply.json()["error"]
    kinds = {"native": 400, "openai": "invalid_request_error", "anthropic": "invalid_request_error"}
    assert error.get("type", error.get("status")) == kinds[face.name]
    assert "raise the temperature" in error["message"]
    assert "the request failed at token 0: a logit overflows" in error["message"]
    if face.name == "anthropic":
        assert error["message"].startswith("temperature: ")
    else:
        assert (error["param"], error["code"]) == ("temperature", "invalid_value")
    assert server.engine.stats().totals.failed == before + 1
    assert post(server, face).status_code == 200
