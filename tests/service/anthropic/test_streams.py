"""Streams: the events of Anthropic's API in their order, and in the end what the plain reply says."""

import re

import pytest

ORDER = re.compile(
    r"message_start content_block_start ping( content_block_delta)* content_block_stop"
    r" message_delta message_stop"
)


@pytest.fixture
def events(http, asked, parse_events):
    """events(text, **fields) -> [(name, data)] as they are on the wire."""

    def read(*args, **fields):
        reply = http.post("/v1/messages", json=asked(*args, **fields, stream=True))
        assert reply.status_code == 200
        return parse_events(reply.text)

    return read


def same(streamed, plain) -> bool:
    return streamed.model_dump(exclude={"id", "content"}) == plain.model_dump(exclude={"id", "content"}) and [
        block.text for block in streamed.content
    ] == [block.text for block in plain.content]


def test_a_stream_ends_as_the_plain_reply(ask, stream, sampling):
    with stream("Hello", **sampling) as events:
        assert same(events.get_final_message(), ask("Hello", **sampling))


def test_a_streamed_conversation_is_the_plain_one(ask, stream, talk):
    with stream(**talk.fields, seed=3) as events:
        assert same(events.get_final_message(), ask(**talk.fields, seed=3))


def test_the_pieces_of_text_join_to_the_text(ask, stream, sampling):
    with stream("Hello", **sampling) as events:
        assert "".join(events.text_stream) == ask("Hello", **sampling).content[0].text


def test_events_come_in_the_order_of_the_api(events, sampling):
    assert ORDER.fullmatch(" ".join(name for name, _ in events("Hello", **sampling)))


def test_every_event_is_named_by_its_type(events):
    assert all(name == data["type"] for name, data in events("Hello", seed=1))


def test_the_frames_are_those_of_server_sent_events(http, asked):
    reply = http.post("/v1/messages", json=asked("Hello", seed=1, stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache" and "content-length" not in reply.headers
    assert re.fullmatch(r"(event: [a-z_]+\ndata: \{[^\n]*\}\n\n)+", reply.text)


def test_the_first_event_knows_the_input_and_no_end(events):
    message = events("Hello", seed=1)[0][1]["message"]
    assert message["content"] == [] and message["stop_reason"] is None and message["stop_sequence"] is None
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (12, 0)
    assert message["seed"] == 1 and message["id"].startswith("msg_")


def test_the_block_is_opened_empty_and_closed(events):
    found = dict(events("Hello", seed=1))
    assert found["content_block_start"]["content_block"] == {"type": "text", "text": ""}
    assert found["content_block_start"]["index"] == found["content_block_stop"]["index"] == 0


def test_every_delta_brings_text(events):
    deltas = [data for name, data in events("Hello", seed=1, max_tokens=40) if name == "content_block_delta"]
    assert deltas and all(d["index"] == 0 and d["delta"]["type"] == "text_delta" for d in deltas)
    assert all(d["delta"]["text"] for d in deltas)


def test_the_last_delta_knows_the_output(events, alone, meant):
    end = dict(events("Hello", seed=1, max_tokens=4))["message_delta"]
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 4 and end["usage"]["input_tokens"] == 12


def test_a_stop_sequence_is_named_and_not_sent(events, alone, meant):
    text = alone(meant("Hello", seed=1, max_tokens=20)).text
    stop = text[4:9]
    found = events("Hello", seed=1, max_tokens=20, stop_sequences=[stop])
    sent = "".join(data["delta"]["text"] for name, data in found if name == "content_block_delta")
    assert sent == text[: text.index(stop)]
    assert dict(found)["message_delta"]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}


def test_an_empty_answer_is_a_block_without_a_delta(events, alone, meant):
    found = events("Hello", seed=1, stop_sequences=[alone(meant("Hello", seed=1)).text[0]])
    assert [name for name, _ in found].count("content_block_delta") == 0
    assert ORDER.fullmatch(" ".join(name for name, _ in found))


def test_no_delta_holds_half_a_character(events, alone, meant):
    for seed in range(40):
        if any(ord(letter) > 127 and letter != "\ufffd" for letter in alone(meant("Hello", seed=seed)).text):
            break
    text = alone(meant("Hello", seed=seed)).text
    pieces = [
        data["delta"]["text"] for name, data in events("Hello", seed=seed) if name == "content_block_delta"
    ]
    assert "".join(pieces) == text and sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_digests_come_with_the_end(events, alone, meant):
    end = dict(events("Hello", seed=2, digests=True))["message_delta"]
    assert end["logits_digests"] == alone(meant("Hello", seed=2, digests=True)).logits_digests


def test_no_digests_come_unasked(events):
    assert "logits_digests" not in dict(events("Hello", seed=2))["message_delta"]


def test_the_seed_is_in_a_header_before_any_token(stream):
    with stream("Hello") as events:
        seed = int(events.response.headers["x-crucible-seed"])
        assert events.get_final_message().seed == seed


def test_a_stream_has_the_requests_id(stream):
    with stream("Hello") as events:
        assert events.request_id.replace("req_", "msg_") == events.get_final_message().id


def test_create_with_stream_gives_the_raw_events(client, asked, arguments, ask):
    wanted = arguments(asked("Hello", seed=1))
    found = list(client.messages.create(**{**wanted, "stream": True}))
    assert [one.type for one in found][:2] == ["message_start", "content_block_start"]
    text = "".join(one.delta.text for one in found if one.type == "content_block_delta")
    assert text == ask("Hello", seed=1).content[0].text


def test_the_snapshot_grows_with_the_events(stream):
    with stream("Hello", seed=1) as events:
        for event in events:
            if event.type == "text":
                assert event.snapshot.endswith(event.text)
                last = event.snapshot
        assert events.get_final_text() == last


def test_beta_streams_are_served_too(client, asked, arguments, ask):
    with client.beta.messages.stream(**arguments(asked("Hello", seed=1))) as events:
        assert "".join(events.text_stream) == ask("Hello", seed=1).content[0].text
