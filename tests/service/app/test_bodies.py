"""Bodies that no face takes, and what every face says to them."""

import gzip
import json
import socket

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from crucible.service import answers  # noqa: F401 - so that every face's bodies are there
from crucible.service.body import MAX_DEPTH, MAX_KEYS, MAX_PARTS, Body, parse
from crucible.service.failure import Refusal
from crucible.service.state import Settings

JSON = {"content-type": "application/json"}
MALFORMED = {
    "empty": (b"", "not JSON"),
    "spaces": (b"  ", "not JSON"),
    "cut_off": (b'{"prompt": "x"', "not JSON"),
    "single_quotes": (b"{'prompt': 'x'}", "not JSON"),
    "trailing_comma": (b'{"prompt": "x",}', "not JSON"),
    "two_values": (b'{"prompt": "x"} {}', "not JSON"),
    "bare_newline_in_text": (b'{"prompt": "a\nb"}', "not JSON"),
    "byte_order_mark": (b'\xef\xbb\xbf{"prompt": "x"}', "not JSON"),
    "array": (b"[]", "JSON array"),
    "string": (b'"x"', "JSON string"),
    "number": (b"5", "JSON number"),
    "boolean": (b"true", "JSON boolean"),
    "null": (b"null", "JSON null"),
    "not_utf8": (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
    "latin1": ('{"prompt": "caf\u00e9"}'.encode("latin1"), "not UTF-8"),
    "utf16": ('{"prompt": "x"}'.encode("utf-16"), "not UTF-8"),
    "encoded_surrogate": (b'{"prompt": "\xed\xa0\x80"}', "not UTF-8"),
    "high_surrogate": (rb'{"prompt": "\ud83d"}', "surrogate"),
    "low_surrogate": (rb'{"prompt": "\uDE00 x"}', "surrogate"),
    "surrogate_key": (rb'{"\ud800": 1}', "surrogate"),
    "nan": (b'{"temperature": NaN}', "NaN"),
    "infinity": (b'{"temperature": Infinity}', "Infinity"),
    "minus_infinity": (b'{"temperature": -Infinity}', "Infinity"),
    "beyond_f64": (b'{"seed": 1e400}', "1e400"),
    "endless_integer": (b'{"seed": ' + b"9" * 5000 + b"}", "digits"),
    "key_twice": (b'{"prompt": "x", "prompt": "y"}', "'prompt' twice"),
    "inner_key_twice": (b'{"messages": [{"role": "user", "role": "user"}]}', "'role' twice"),
    "deep_arrays": (b'{"prompt": ' + b"[" * 70 + b"]" * 70 + b"}", "deeper than 64"),
    "deep_objects": (b'{"a": ' * 80 + b"1" + b"}" * 80, "deeper than 64"),
    "endless_depth": (b"[" * 1_000_000, "deeper than 64"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_body_is_a_400_in_the_face_s_shape(tiny_server, post, face, name):
    raw, why = MALFORMED[name]
    reply = post(tiny_server, face, content=raw, headers=JSON)
    assert reply.status_code == 400, reply.text
    assert why in face.said(reply)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": "' + b"[{" * 500 + b'"}',
        b'{"a": "\\"' + b"[" * 200 + b'"}',
        b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}",
        b'{"a": [' + b"[], {}, " * 500 + b"[]]}",
        rb'{"a": "\ud83d\ude00"}',
        b'{"a": 18446744073709551615, "b": 1e308, "c": -0.0}',
        b' \r\n{"a": {"a": 1}, "b": {"a": 1}}\n',
    ],
    ids=["brackets_in_text", "escaped_quote", "deepest", "wide", "surrogate_pair", "numbers", "spaces"],
)
def test_what_only_looks_wrong_is_read_as_json_does(raw):
    assert parse(raw) == json.loads(raw)


def test_a_large_integer_stays_exact():
    assert parse(b'{"seed": 18446744073709551615}') == {"seed": 2**64 - 1}


def test_finding_the_key_given_twice_takes_time_by_the_length_of_the_body():
    """A quadratic search would not end within the test's patience."""
    keys = ", ".join(f'"k{n}": 1' for n in range(100_000))
    with pytest.raises(Refusal, match="'k99999' twice"):
        parse(f'{{{keys}, "k99999": 2}}'.encode())


def _keys(count: int) -> bytes:
    return json.dumps(dict.fromkeys(map(str, range(count)), 1)).encode()


@pytest.mark.parametrize("around", [b"%b", b'{"messages": [%b]}'], ids=["outside", "inside"])
def test_an_object_of_very_many_keys_is_refused_before_each_is_complained_of(around):
    """A body of 3 MB has room for 300,000: to list them all stopped every stream for seconds."""
    with pytest.raises(Refusal, match=f"an object of {MAX_KEYS + 1} keys; give at most {MAX_KEYS}"):
        parse(around % _keys(MAX_KEYS + 1))
    assert parse(around % _keys(MAX_KEYS)) == json.loads(around % _keys(MAX_KEYS))


@pytest.mark.parametrize("part", [b"{}", b"[]", b'{"a": "]"}'], ids=["objects", "lists", "not_empty"])
def test_a_body_of_very_many_parts_is_refused_before_each_is_checked(part):
    """A body of 4 MB holds 300,000 messages: to check them all stopped every stream for two seconds."""
    most = MAX_PARTS - 2  # beside the body itself and its list
    raw = b'{"a": "[{", "b": [' + b", ".join([part] * most)
    assert parse(raw + b"]}") == json.loads(raw + b"]}")
    with pytest.raises(Refusal, match=f"holds {MAX_PARTS + 1} objects and lists; give at most {MAX_PARTS}"):
        parse(raw + b", " + part + b"]}")


def test_as_many_messages_as_may_be_have_room_for_a_part_each():
    message = {"role": "user", "content": [{"type": "text", "text": "{"}]}
    body = {"messages": [message] * 4096}
    assert parse(json.dumps(body).encode()) == body


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"a": ' + b"[" * 63 + b"]" * 62 + b"}", "not JSON"),
        (b'{"a": [' + b"[" * 62 + b"]" * 62 + b", [}", "not JSON"),
        (b'{"a": ' + b"[{" * 33, "deeper"),
        (b"]" * 100 + b"[" * 100, "deeper"),
        (b"]" * 100, "not JSON"),
        (b'{"a": ' + b'[{"b":' * 40 + b"1" + b"}]" * 40 + b"}", "deeper"),
    ],
    ids=["one_open", "mixed_up", "never_closed", "inside_out", "never_opened", "mixed"],
)
def test_brackets_without_partners_are_not_taken_for_depth_unless_endless(raw, why):
    with pytest.raises(Refusal, match=why):
        parse(raw)


def test_depth_is_counted_in_a_body_of_many_texts():
    raw = b'{"a": ["x]", "\\\\", ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]}"
    with pytest.raises(Refusal, match="deeper than 64"):
        parse(raw)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "text/json"])
def test_a_body_that_is_not_called_json_is_a_415(tiny_server, post, face, kind):
    headers = {"content-type": kind} if kind else None
    reply = post(tiny_server, face, content=json.dumps(face.body), headers=headers)
    assert reply.status_code == 415 and "application/json" in face.said(reply)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_be_spelled_with_a_charset_and_capitals(tiny_server, post, face, kind):
    reply = post(tiny_server, face, content=json.dumps(face.body), headers={"content-type": kind})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("coding, status", [("gzip", 415), ("br, gzip", 415), ("identity", 200)])
def test_a_compressed_body_is_a_415_that_names_its_coding(tiny_server, post, face, coding, status):
    raw = json.dumps(face.body).encode()
    content = raw if status == 200 else gzip.compress(raw)
    reply = post(tiny_server, face, content=content, headers={**JSON, "content-encoding": coding})
    assert reply.status_code == status and (status == 200 or repr(coding) in face.said(reply))


def test_a_body_of_10_mb_is_a_413(tiny_server, post, face):
    reply = post(tiny_server, face, content=b" " * 10_000_000, headers=JSON)
    assert reply.status_code == 413 and "4194304 bytes" in face.said(reply)


def test_a_large_body_without_a_length_is_a_413_too(tiny_server, post, face):
    parts = (b" " * 100_000 for _ in range(60))
    reply = post(tiny_server, face, content=parts, headers=JSON)
    assert reply.status_code == 413 and "4194304 bytes" in face.said(reply)


@pytest.fixture(scope="module")
def narrow(serve_once, tiny):
    """A server that takes 4096 bytes."""
    return serve_once(tiny, settings=Settings("tiny", max_body=4096))


@pytest.fixture(scope="module")
def hasty(serve_once, tiny):
    """A server that waits 50 ms for a body."""
    return serve_once(tiny, settings=Settings("tiny", read_timeout=0.05))


def test_the_limit_itself_is_taken(narrow, post, face):
    raw = json.dumps(face.body).encode()
    assert post(narrow, face, content=raw.ljust(4096), headers=JSON).status_code == 200
    assert post(narrow, face, content=raw.ljust(4097), headers=JSON).status_code == 413


def test_a_declared_length_is_refused_before_the_body_comes(tiny_server):
    with socket.create_connection(("127.0.0.1", tiny_server.port), timeout=20) as line:
        line.sendall(
            b"POST /v1/generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 99999999999\r\n\r\n"
        )
        assert line.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come_is_a_408(hasty, face):
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=20) as line:
        head = f"POST {face.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        line.sendall(f"{head}content-length: 50\r\n\r\n{{".encode())
        assert line.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_408_ends_its_connection(hasty):
    """Else a client that goes on byte by byte holds it for as long as it likes."""
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=20) as line:
        head = b"POST /v1/generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        line.sendall(head + b"content-length: 50\r\n\r\n{")
        answer = line.makefile("rb").read()  # ends with the connection
    assert answer.startswith(b"HTTP/1.1 408 ") and b"\r\nconnection: close\r\n" in answer


def test_a_client_that_leaves_inside_its_body_is_let_go(serve, tiny, until):
    server = serve(tiny)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as line:
        line.sendall(
            b"POST /v1/generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 50\r\n\r\n{"
        )
        until(lambda: server.service.inflight == 1, "the request has begun")
    until(lambda: server.service.inflight == 0, "the request has ended")
    assert server.engine.stats().totals.submitted == 0


def test_a_refused_body_submits_nothing(tiny_server, post, face):
    before = tiny_server.engine.stats().totals.submitted, sum(tiny_server.service.surfaces.values())
    for raw, _ in list(MALFORMED.values())[2:5]:
        post(tiny_server, face, content=raw, headers=JSON)
    assert before == (tiny_server.engine.stats().totals.submitted, sum(tiny_server.service.surfaces.values()))


def _bodies(kind: type = Body) -> list[type]:
    return [kind, *(found for below in kind.__subclasses__() for found in _bodies(below))]


@pytest.mark.parametrize(
    "body", _bodies()[1:], ids=lambda body: f"{body.__module__.split('.')[2]}_{body.__name__}"
)
def test_of_many_wrong_items_the_first_is_enough(body):
    """A body has room for a million of them: to complain about each would take the event loop a minute."""
    wrong = {name: [{"strange": 1}] * 1000 for name in body.model_fields}
    with pytest.raises(ValidationError) as error:
        body.model_validate(wrong)
    assert error.value.error_count() < 100


def test_the_connection_serves_on_after_a_refusal(tiny_server, alone):
    from crucible.engine.request import Request

    with httpx.Client(base_url=tiny_server.url, timeout=30, verify=False) as client:
        assert client.post("/v1/generate", content=b"{", headers=JSON).status_code == 400
        assert client.post("/v1/generate", content=b" " * 5_000_000, headers=JSON).status_code == 413
        reply = client.post("/v1/generate", json={"prompt": "hi", "max_tokens": 4}).json()
    assert reply["tokens"] == alone(Request("hi", 4)).tokens


@given(before=st.text('[]{}"\\ a', max_size=40), after=st.text('[]{}"\\ a', max_size=40))
def test_what_texts_hold_changes_no_depth(before, after):
    def body(depth: int) -> bytes:
        deep = json.loads("[" * depth + "]" * depth)
        return json.dumps(
            {before: after, "many": ["["] * MAX_DEPTH, "deep": deep, "end": [before, after]}
        ).encode()

    assert parse(body(MAX_DEPTH - 1))["end"] == [before, after]
    with pytest.raises(Refusal, match="nested deeper"):
        parse(body(MAX_DEPTH))
