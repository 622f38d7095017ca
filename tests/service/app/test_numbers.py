"""What /metrics and /stats tell."""

import json
import threading

from prometheus_client.parser import text_string_to_metric_families

from crucible.engine.scheduler import Limits


def metrics(server) -> dict:
    """{(sample name, its labels): value} of /metrics, once every reply is counted."""
    server.quiet()
    text = server.get("/metrics").text
    families = text_string_to_metric_families(text)
    return {(s.name, *sorted(s.labels.values())): s.value for f in families for s in f.samples}


def test_requests_are_counted_by_face_and_status(serve, tiny, post, face):
    server = serve(tiny)
    for _ in range(2):
        post(server, face)
    post(server, face, json={**face.body, "max_tokens": "many"})
    found = metrics(server)
    assert found["crucible_requests_total", "200", face.name] == 2
    wrong = {key: v for key, v in found.items() if key[0] == "crucible_requests_total" and "4" in key[1][0]}
    assert sum(wrong.values()) == 1
    assert found["crucible_completion_tokens_total", face.name] == 4
    assert found["crucible_prompt_tokens_total", face.name] >= 4
    assert found["crucible_time_to_first_token_seconds_count", face.name] == 2
    assert found["crucible_request_seconds_count", face.name] == 2
    assert server.get("/stats").json()["surfaces"] == {face.name: 2}


def test_gaps_between_tokens_are_observed(serve, tiny, gate):
    server = serve(tiny, gate=gate)
    body = {"prompt": "a", "max_tokens": 4, "stream": True}
    with server.client.stream("POST", "/v1/generate", json=body) as reply:
        for n, line in enumerate(_tokens_lines(reply, gate)):
            assert json.loads(line)["index"] == n
    found = metrics(server)
    assert found["crucible_inter_token_seconds_count", "native"] == 3
    assert 0 < found["crucible_inter_token_seconds_sum", "native"] < 30


def _tokens_lines(reply, gate):
    gate.let(1)
    for line in reply.iter_lines():
        if line.startswith('data: {"index"'):
            yield line.removeprefix("data: ")
            gate.let(1)


def test_two_applications_count_apart(serve, tiny):
    one, other = serve(tiny), serve(tiny)
    one.post("/v1/generate", json={"prompt": "a", "max_tokens": 1})
    assert metrics(one)["crucible_requests_total", "200", "native"] == 1
    assert ("crucible_requests_total", "200", "native") not in metrics(other)


def test_the_engine_s_numbers_stand_in_metrics_and_stats(serve, tiny):
    server = serve(tiny, Limits(pages=48))
    server.post("/v1/generate", json={"prompt": "a" * 40, "max_tokens": 3})
    server.idle()
    found, stats = metrics(server), server.get("/stats").json()
    engine = stats["engine"]
    assert engine["batches"] == {
        "prefill_only": {"steps": 1, "rows": 40},
        "decode_only": {"steps": 2, "rows": 2},
        "mixed": {"steps": 0, "prefill_rows": 0, "decode_rows": 0},
    }
    assert engine["pages"]["total"] == 48 == found["crucible_pages",]
    assert engine["pages"]["cached"] == found["crucible_pages_cached",] > 0 == engine["pages"]["used"]
    assert engine["queue"] == {"waiting": 0, "running": 0}
    assert engine["tokens"] == 3 and engine["requests"]["finished"] == 1
    assert found["crucible_steps_total", "decode"] == 2 and found["crucible_rows_total", "prefill"] == 40
    assert found["crucible_ready",] == 1 and found["crucible_engine_restarts_total",] == 0
    assert stats["status"] == "ready" and stats["failure"] is None and stats["uptime_seconds"] > 0
    assert stats["limits"]["pages"] == 48 and stats["inflight"] == 0


def test_requests_that_run_together_show_as_mixed_steps(serve, tiny, gate, until):
    server = serve(tiny, gate=gate)
    ask = lambda: server.post("/v1/generate", json={"prompt": "ab", "max_tokens": 4})  # noqa: E731
    asking = [threading.Thread(target=ask) for _ in range(2)]
    asking[0].start()
    until(lambda: gate.holding, "the first runs")
    gate.let(1)
    until(lambda: server.engine.stats().totals.steps == 1 and gate.holding, "it decodes")
    asking[1].start()
    until(lambda: len(server.engine._live) == 2, "the second is in")
    gate.open()
    for thread in asking:
        thread.join(30)
    mixed = server.get("/stats").json()["engine"]["batches"]["mixed"]
    assert mixed == {"steps": 1, "prefill_rows": 2, "decode_rows": 1}


def test_numbers_are_told_while_loading_without_the_engine_s(serve, tiny):
    server = serve(tiny)
    server.service.loading = True
    stats = server.get("/stats").json()
    assert stats["status"] == "loading" and stats["engine"] is None
    assert metrics(server)["crucible_ready",] == 0


def test_requests_in_flight_are_those_beside_the_one_that_asks(serve, tiny, gate, until):
    server = serve(tiny, gate=gate)
    assert metrics(server)["crucible_inflight_requests",] == 0
    server.quiet()
    assert server.get("/stats").json()["inflight"] == 0
    body = {"prompt": "a", "max_tokens": 2}
    asking = threading.Thread(target=lambda: server.post("/v1/generate", json=body))
    asking.start()
    until(lambda: gate.holding and server.service.inflight == 1, "it runs, and nothing else")
    assert server.get("/stats").json()["inflight"] == 1
    gate.open()
    asking.join(30)
