"""Log lines: one a request, with everything but what a client said."""

import io
import json
import logging
import socket

import pytest

from crucible.service import logs

SECRET = "xyzzy-plugh"


@pytest.fixture
def lines():
    """lines(server) -> the log lines since the test began, as objects, once every reply has its line."""
    stream, known = io.StringIO(), [logs.logger, *map(logging.getLogger, ("uvicorn.error", "asyncio"))]
    before = [(one, list(one.handlers), one.level, one.propagate) for one in known]
    logs.configure(stream)

    def read(server) -> list[dict]:
        server.quiet()
        server.get("/health/live")  # whose own line comes after those of the replies before it
        server.quiet()
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        return [line for line in found if line.get("route") != "/health/live"]

    yield read
    for one, handlers, level, propagate in before:
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


def test_a_request_is_one_line_without_a_text(tiny_server, post, face, lines):
    server = tiny_server
    body = json.loads(json.dumps(face.body).replace('"hi"', f'"{SECRET}"'))
    reply = post(server, face, json=body)
    (line,) = lines(server)
    assert (line["event"], line["face"], line["status"]) == ("request", face.name, 200)
    assert line["id"] == reply.headers["x-request-id"] and line["route"] == face.path
    assert line["completion_tokens"] == 2 and line["prompt_tokens"] >= len(SECRET)
    assert 0 < line["first_token_seconds"] <= line["seconds"]
    assert SECRET not in json.dumps(line)
    made = {v for v in _texts(reply.json()) if len(v) > 3}
    assert not [
        text for text in made if text in set(map(str, line.values())) - {line["id"], "stop", "length"}
    ]


def _texts(value) -> set[str]:
    if isinstance(value, dict | list):
        return set().union(*map(_texts, value.values() if isinstance(value, dict) else value))
    return {value} if isinstance(value, str) else set()


@pytest.mark.parametrize(
    "send",
    [
        lambda server: server.post("/v1/generate", json={"prompt": SECRET, "max_tokens": SECRET}),
        lambda server: server.post("/v1/generate", json={SECRET: 1}),
        lambda server: server.post("/v1/generate", content=SECRET, headers={"x-api-key": SECRET}),
        lambda server: server.post("/v1/completions", json={"model": SECRET, "prompt": "x"}),
        lambda server: server.post("/v1/messages", json={"model": "tiny", "messages": [{"role": SECRET}]}),
        lambda server: server.get(f"/{SECRET}?q={SECRET}"),
        lambda server: server.get(f"/v1/models/{SECRET}"),
        lambda server: server.post("/v1/generate", json={"prompt": SECRET * 200, "max_tokens": 5}),
        lambda server: server.post("/v1/generate", json={"prompt": SECRET, "stream": True}),
    ],
    ids=["value", "key", "not_json", "model", "role", "path", "model_path", "too_long", "stream"],
)
def test_whatever_a_client_sends_stays_out_of_the_log(tiny_server, lines, send):
    reply = send(tiny_server)
    (line,) = lines(tiny_server)
    assert line["status"] == reply.status_code and SECRET not in json.dumps(line)


def test_an_unforeseen_error_is_a_500_whose_log_says_where_and_quotes_nothing(serve, tiny, post, face, lines):
    server = serve(tiny)

    def fail(request):
        raise KeyError(SECRET)

    server.service.backend.check = fail
    reply = post(server, face)
    assert reply.status_code == 500 and SECRET not in reply.text and "its log" in face.said(reply)
    error, line = lines(server)
    assert error["event"] == "unforeseen error" and error["error"] == "KeyError"
    assert error["id"] == line["id"] == reply.headers["x-request-id"]
    assert any("test_logs.py" in frame and frame.endswith(" fail") for frame in error["where"])
    assert SECRET not in json.dumps([error, line]) and line["level"] == "error"


def test_an_unforeseen_error_inside_a_stream_is_its_last_event(serve, tiny, lines, monkeypatch, parse_events):
    from crucible.service.native.reply import Reply

    monkeypatch.setattr(Reply, "whole", lambda self, result: 1 / 0)
    server = serve(tiny)
    body = {"prompt": SECRET, "max_tokens": 3, "stream": True}
    reply = server.post("/v1/generate", json=body)
    assert parse_events(reply.text)[-1][0] == "error"
    error, line = lines(server)
    assert error["error"] == "ZeroDivisionError" and line["code"] == "internal_error"


def test_the_level_follows_the_status(serve, tiny, lines):
    server = serve(tiny)
    server.service.draining = True
    server.post("/v1/generate", json={"prompt": "x", "max_tokens": 1})
    server.get("/stats")
    server.get("/health/ready")
    assert [line["level"] for line in lines(server)] == ["warning", "info", "info"]
    logs.note("engine_restarted", logging.WARNING, restarts=2)
    assert {**lines(server)[-1], "time": 0} == {
        "time": 0,
        "level": "warning",
        "event": "engine_restarted",
        "restarts": 2,
    }


@pytest.mark.parametrize("condition, level", [("loading", "info"), ("draining", "info"), ("dead", "error")])
def test_a_probe_before_its_time_is_no_error(serve, tiny, lines, monkeypatch, condition, level):
    server = serve(tiny)
    if condition == "dead":
        monkeypatch.setattr(type(server.service.backend), "failure", "it fell")
    else:
        setattr(server.service, condition, True)
    assert server.get("/health/ready").status_code == 503
    (line,) = lines(server)
    assert (line["level"], line["code"]) == (level, condition)


def test_what_is_no_http_request_is_a_json_line(serve, tiny, lines):
    server = serve(tiny)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as talk:
        talk.sendall(f"{SECRET}\r\n\r\n".encode())
        assert talk.makefile("rb").read().startswith(b"HTTP/1.1 400")
    (line,) = lines(server)
    assert (line["level"], line["event"]) == ("warning", "Invalid HTTP request received.")
    assert SECRET not in json.dumps(line)


def test_a_task_that_nobody_waited_for_is_a_json_line_that_quotes_nothing(serve, tiny, lines):
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        told = (type(error), error, error.__traceback__)
    logging.getLogger("asyncio").error("a task ended with an error", exc_info=told)
    (line,) = lines(serve(tiny))
    assert (line["level"], line["error"]) == ("error", "KeyError") and "test_logs.py" in line["where"][0]
    assert SECRET not in json.dumps(line)
