"""Answers of SmolLM2 int8 on every face, recorded from an earlier build, come again token for token."""

from pathlib import Path

from crucible.gates import http_oracle as oracle
from crucible.gates import http_recording
from crucible.service.load import client
from crucible.service.load.target import target

# Made by: crucible gate http --record FILE --model smollm2 --mode int8 --requests 8 --max-tokens 16
RECORDED = Path(__file__).with_name("answers.json.gz")


def test_the_answers_of_an_earlier_build_come_again(smollm2_url):
    facts, expected = http_recording.load(RECORDED)
    assert len(expected) == 15 and sum(map(oracle.tokens, expected)) > 200, facts
    to = target(smollm2_url)
    found = [client.wait(oracle.answer(to, exchange)) for exchange in expected]
    differing = [str(d) for d in map(oracle.compare, expected, found) if d is not None]
    assert not differing, differing
