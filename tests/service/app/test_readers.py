"""Two readers of a body's JSON: the quick one says what the careful one says, or leaves it to that one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crucible.service.body import _careful, _flat, parse
from crucible.service.failure import Refusal


def said(read, raw):
    """What a reader makes of a body: the repr of the value, or the sentence of the refusal."""
    try:
        return repr(read(raw))
    except Refusal as refusal:
        return str(refusal)


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from([":", '":', "[{", "\\ud800"])
_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_PAIRS = st.lists(st.tuples(st.sampled_from(["a", "b", "seed", ""]) | _TEXTS, _VALUES), max_size=5)


@given(
    pairs=_PAIRS,
    ascii=st.booleans(),
    at=st.integers(0, 200),
    put=st.sampled_from([b"", b",", b":", b"9", b"\xff"]),
)
def test_the_quick_reader_says_what_the_careful_one_says(pairs, ascii, at, put):
    members = [
        json.dumps(name, ensure_ascii=ascii) + ": " + json.dumps(value, ensure_ascii=ascii)
        for name, value in pairs
    ]
    raw = ("{" + ", ".join(members) + "}").encode()
    raw = raw[:at] + put + raw[at:]
    assert said(parse, raw) == said(_careful, raw)


@pytest.mark.parametrize(
    "raw",
    [b'{"prompt": [1, 2, 3], "stream": true}', b'{"prompt": "x", "logprobs": null}', b"{}"],
)
def test_a_flat_body_is_read_quickly(raw):
    assert _flat(raw) == json.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt": "x", "prompt": "y"}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": {"b": 1}}',
        b'{"a": ":"}',
        b"[]",
        b"{",
    ],
)
def test_a_body_with_more_to_look_at_is_left_to_the_careful_reader(raw):
    assert _flat(raw) is None
