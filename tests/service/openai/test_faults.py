"""When a request fails, is cut off or is left: what the SDK raises, and what is given back."""

import threading

import openai
import pytest

from crucible.engine.scheduler import Limits

HI = [{"role": "user", "content": "Hi"}]


def read(stream) -> str:
    """The text of a stream of completions, as far as it came."""
    return "".join(chunk.choices[0].text for chunk in stream)


def test_a_full_queue_is_a_rate_limit_with_the_time_to_come_again(scripted):
    client, _, runner = scripted("abc", limits=Limits(queue=1, decode_batch=1))
    runner.gate.clear()
    first = client.completions.create(model="tiny", prompt="x", stream=True)
    second = None
    with pytest.raises(openai.RateLimitError) as caught:
        for _ in range(3):
            second = client.completions.create(model="tiny", prompt="y", stream=True)
    assert caught.value.code == "queue_full" and caught.value.type == "rate_limit_error"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    runner.gate.set()
    assert read(first) == "abc" and (second is None or read(second) == "abc")


def test_a_failed_request_is_a_server_error(saying):
    client, _, _ = saying("ab\x01")
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="tiny", prompt="x")
    assert (caught.value.status_code, caught.value.code) == (500, "request_failed")
    assert "NaN" in caught.value.message


def test_a_failed_stream_gives_its_tokens_and_then_raises(saying):
    client, _, _ = saying("ab\x01")
    texts = []
    with pytest.raises(openai.APIError, match="NaN") as caught:
        for chunk in client.completions.create(model="tiny", prompt="x", stream=True):
            texts.append(chunk.choices[0].text)
    assert "".join(texts) == "ab" and caught.value.code == "request_failed"


def test_a_failed_stream_has_no_done_and_no_finish_reason(saying, parse_events):
    client, _, _ = saying("ab\x01")
    raw = client.completions.with_raw_response.create(model="tiny", prompt="x", stream=True)
    events = parse_events(raw.http_response.read().decode())
    assert set(events[-1][1]) == {"error"}
    assert all(data["choices"][0]["finish_reason"] is None for _, data in events[:-1])


def test_a_failed_request_leaves_others_alone(saying):
    client, _, _ = saying("fine", texts={"!": "a\x01"})
    good = client.completions.create(model="tiny", prompt="x", stream=True)
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="tiny", prompt="!")
    assert read(good) == "fine"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_one_failed_prompt_ends_its_neighbours_of_the_same_request(saying, until, stream):
    client, server, runner = saying("fine" * 100, texts={"!": "a\x01"})
    before = server.engine.stats().totals.cancelled
    runner.gate.clear()
    runner.steps.release(8)  # enough for the second prompt to fail, and the first has far to go
    with pytest.raises(openai.APIError):
        made = client.completions.create(model="tiny", prompt=["x", "!"], max_tokens=400, stream=stream)
        list(made)
    until(lambda: server.service.inflight == 0, "the service has answered")
    runner.gate.set()
    until(lambda: server.engine.stats().totals.cancelled - before == 1, "the other prompt is cancelled")


def test_a_dead_engine_is_unavailable(scripted):
    client, _, _ = scripted("ok", texts={"!": "a\x02"})
    for prompt in ("!", "x"):
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model="tiny", prompt=prompt)
        assert caught.value.status_code == 503 and "retry-after" in caught.value.response.headers


def test_a_stream_whose_engine_dies_raises(scripted):
    client, _, _ = scripted("ab\x02")
    with pytest.raises(openai.APIError) as caught:
        list(client.chat.completions.create(model="tiny", messages=HI, stream=True))
    assert caught.value.code == "engine_stopped"


def test_a_stream_that_the_service_cuts_off_raises(scripted, until):
    client, server, runner = scripted("abc" * 50)
    runner.gate.clear()
    stream = client.chat.completions.create(model="tiny", messages=HI, stream=True)
    runner.closed = True
    closing = threading.Thread(target=server.engine.close)
    closing.start()
    until(lambda: server.engine._stopping, "the engine is told to end")
    runner.gate.set()
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    closing.join()
    assert caught.value.code == "cancelled"


def test_a_draining_service_takes_nothing_new(saying):
    client, server, _ = saying("abc")
    server.service.draining = True
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="tiny", prompt="x")
    assert (caught.value.status_code, caught.value.code) == (503, "draining")


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_a_stream_cancels_all_its_choices(saying, until, n):
    client, server, runner = saying("abc" * 300)
    before = server.engine.stats().totals.cancelled
    runner.gate.clear()
    with client.chat.completions.create(model="tiny", messages=HI, n=n, stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.role == "assistant"
    until(lambda: server.service.inflight == 0, "the service sees that the client left")
    runner.gate.set()
    until(lambda: server.engine.stats().totals.cancelled - before == n, "all choices are cancelled")


def test_leaving_before_the_reply_cancels_the_request(saying, until, leave):
    _, server, runner = saying("abc" * 300)
    before = server.engine.stats().totals.cancelled
    runner.gate.clear()
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    leave(server, client, lambda: client.completions.create(model="tiny", prompt="x", max_tokens=900))
    runner.gate.set()
    until(lambda: server.engine.stats().totals.cancelled - before == 1, "the request is cancelled")


def test_a_first_token_is_sent_before_the_second_is_made(saying):
    client, _, runner = saying("abc")
    runner.gate.clear()
    stream = iter(client.chat.completions.create(model="tiny", messages=HI, stream=True))
    assert next(stream).choices[0].delta.role == "assistant"
    runner.steps.release()
    assert next(stream).choices[0].delta.content == "a"
    runner.gate.set()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "bc"
