"""Formulas on samples made by hand, raw files that come back equal, and the record's figures."""

import re

import pytest

from crucible.errors import InputError
from crucible.service.load.samples import Sample, digest, load, save, throughput
from crucible.service.load.summary import lines, metrics, over_server, to_record

HAND = Sample(
    label="x",
    burst=0,
    warmup=False,
    prompt_tokens=3,
    planned=1.0,
    sent=1.0,
    end=2.0,
    status=200,
    times=(1.25, 1.5, 1.5, 1.75),
    events=(0, 1, 1, 2),
    tokens=(7, 8, 9, 10),
    digest=digest((7, 8, 9, 10)),
    seed=5,
    finish="length",
    server={"first_token": 0.125},
)


def made(**changes) -> Sample:
    return Sample(**{**vars(HAND), **changes})


def test_the_formulas():
    assert HAND.ttft == 0.25 and HAND.end_to_end == 1.0
    assert HAND.arrivals == (1.25, 1.5, 1.75) and HAND.gaps == (0.25, 0.25) and HAND.shared == 1
    assert HAND.rate == 3 / 0.5
    assert throughput([HAND, made(sent=0.0, end=3.0)]) == 8 / 3
    assert made(times=(1.25,), events=(0,)).rate is None and made(usage=9).count == 9
    with pytest.raises(InputError):
        throughput([])


def test_warmups_and_failures_are_in_no_metric():
    others = [
        made(warmup=True, sent=-9.0),
        made(status=429, times=(), events=(), error="full"),
        made(error="x"),
    ]
    found = {m.name: m for m in metrics([HAND, *others])}
    assert found["TTFT"].values == (250.0,) and found["tok/s"].values == (4.0,)
    assert found["gap"].values == (250.0, 250.0)
    text = "\n".join(lines([HAND, *others]))
    assert "1 of 3 requests answered" in text and "full (x1)" in text and "1 warmups apart" in text


def test_requests_that_a_full_queue_refused_are_counted_apart():
    busy, broken = made(status=429, error="as many wait as may"), made(status=503, error="the engine stopped")
    taken = [HAND, busy, busy, broken, made(status=429, error="as many wait as may", warmup=True)]
    text = lines(taken)
    assert "1 of 4 requests answered" in text[0]
    assert "2 refused with 429 by a queue that is full; 1 warmups apart" in text[0]
    assert "  failed: as many wait as may (x2)" in text and "  failed: the engine stopped (x1)" in text
    facts = to_record("a plan", taken, None, {}, "cpu").facts
    assert facts["refused with 429"] == 2 and facts["failed"] == 3


def test_an_answer_without_a_token_says_so():
    assert any(
        "no token that can be timed" in line for line in lines([HAND, made(times=(), events=(), usage=3)])
    )


def test_a_95th_percentile_needs_twenty_values():
    few = [made(burst=i, sent=1.0 - i / 100) for i in range(4)]
    many = [made(burst=i, sent=1.0 - i / 100) for i in range(20)]
    few, many = (
        re.split(r"\s{2,}", next(x for x in lines(n) if " TTFT  " in x).strip()) for n in (few, many)
    )
    assert few == ["TTFT", "265 [250, 280] ms", "4"]
    assert many == ["TTFT", "345 [250, 440] ms", "430.5", "20"]


def test_the_servers_own_first_token_is_set_beside():
    assert over_server([HAND, made(server={})]) == [0.125]


def test_raw_samples_come_back_equal_and_equal_samples_give_equal_bytes(tmp_path):
    path = save(tmp_path / "raw.json.gz", [HAND, made(burst=1)], {"plan": "p"})
    again = save(tmp_path / "again.json.gz", [HAND, made(burst=1)], {"plan": "p"})
    assert load(path) == ([HAND, made(burst=1)], {"plan": "p"})
    assert path.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("data", [b"", b"not gzip", b"\x1f\x8b\x08\x00"])
def test_a_file_of_something_else_is_refused(tmp_path, data):
    path = tmp_path / "raw.json.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match="no file of raw samples"):
        load(path)


def test_digests_tell_tokens_apart():
    assert digest((1, 2)) != digest((2, 1)) != digest((), "ab") != digest((), "ba")


def test_a_record_counts_requests_and_fails_with_one(tmp_path):
    good = to_record("a plan", [HAND], None, {}, "cpu")
    assert good.verdict == "measured" and good.facts["TTFT, median ms"] == 250.0
    assert good.facts["TTFT above the server's own, median ms"] == 125.0
    bad = to_record("a plan", [HAND, made(error="x")], None, {}, "cpu")
    assert bad.verdict == "fail" and bad.facts["failed"] == 1
