"""The service gate and the HTTP oracle find what is wrong, and nothing where nothing is."""

import asyncio
import copy
import dataclasses
import gzip
import json

import pytest

from crucible.errors import InputError, UnavailableError
from crucible.evidence.record import to_json
from crucible.gates import http_facts, http_recording
from crucible.gates import http_oracle as oracle
from crucible.gates import service_traffic as traffic
from crucible.gates.http_record import to_record
from crucible.gates.service import BELOW, OVER, Load, Phase, ServiceGate
from crucible.gates.service_record import record, summary
from crucible.gates.service_traffic import Answer, Watched
from crucible.service.load.target import Target


def engine(used=0, cancelled=0, failed=0, peak=0) -> dict:
    return {
        "engine": {
            "queue": {"waiting": 0, "running": 0},
            "queue_peak": peak,
            "pages": {"used": used},
            "requests": {"cancelled": cancelled, "failed": failed},
        },
        "limits": {"queue": 4},
        "engine_restarts": 0,
    }


def held() -> ServiceGate:
    """A gate whose made-up run holds in everything."""
    gate = ServiceGate(Target("127.0.0.1", 1), 1)
    state = {"seed": 7, "next_draw": 3}
    gate.alone = {0: Answer(0, 200, (5, 6, 7), state), 1: Answer(1, 200, (8, 9, 1), state)}
    whole, left = [gate.alone[0], gate.alone[1]], [Answer(0, 200, (5, 6), left=True)]
    refused = [Answer(1, 429, retry_after="1")]
    seen = Watched([0, 2], [1], [3], [100 << 20] * 4)
    gate.phases = [
        Phase(Load(BELOW, 1, 3), [*whole, *left], seen, engine(), engine(0, 1, 0, 1), 1.0, 100 << 20),
        Phase(Load(OVER, 9, 4), [*whole, *refused], seen, engine(0, 1), engine(0, 1, 0, 4), 1.0, 100 << 20),
    ]
    return gate


def spoil_token(gate):
    gate.phases[1].answers[0] = Answer(0, 200, (5, 6, 8), gate.alone[0].random_state)


def spoil_state(gate):
    gate.phases[0].answers[1] = Answer(1, 200, (8, 9, 1), {"seed": 7, "next_draw": 4})


def spoil_beginning(gate):
    gate.phases[0].answers[2] = Answer(0, 200, (5, 7), left=True)


def spoil_status(gate):
    gate.phases[0].answers[0] = Answer(0, 500)


def spoil_stream(gate):
    gate.phases[0].answers[0] = Answer(0, 200, (5,), error="the connection ended before the reply did")


def spoil_hint(gate):
    gate.phases[1].answers[2] = Answer(1, 429)


def spoil_refusal(gate):
    gate.phases[0].answers[0] = Answer(0, 429, retry_after="1")


def spoil_pages(gate):
    gate.phases[1].settled = engine(1, 1, 0, 4)


def spoil_queue(gate):
    gate.phases[1].settled = engine(0, 1, 0, 5)


def spoil_memory(gate):
    gate.phases[1].memory = 200 << 20


def spoil_failure(gate):
    gate.phases[1].settled = engine(0, 1, 1, 4)


def spoil_restart(gate):
    gate.phases[1].settled = engine(0, 1, 0, 4) | {"engine_restarts": 1}


def spoil_cancels(gate):
    gate.phases[0].settled = engine(0, 0, 0, 1)


def spoil_silence(gate):
    gate.phases[1].seen = dataclasses.replace(gate.phases[1].seen, unanswered=1)


def spoil_overload(gate):
    gate.phases[1].answers.pop()  # the queue is full and nobody was refused


SPOILS = [f for name, f in sorted(globals().items()) if name.startswith("spoil_")]


@pytest.mark.parametrize("capacity, holds", [(None, True), (3.0, False)])
def test_a_given_rate_that_never_fills_the_queue_needs_no_refusal(capacity, holds):
    gate = held()
    gate.capacity = capacity
    gate.phases[1].answers.pop()
    gate.phases[1].settled = engine(0, 1, 0, 3)
    gate.judge(True)
    assert gate.passed == holds
    assert any("kept up" in line for line in summary(gate))


def test_the_capacity_is_that_of_answers_and_not_of_refusals(monkeypatch):
    """A burst larger than the queue is refused in part, in no time."""
    sent, answered = [], []

    async def send(to, case):
        sent.append(case.number)
        if len(sent) > 8 and sent.count(case.number) < 3:
            return Answer(case.number, 429, retry_after="1")
        answered.append(case.number)
        return Answer(case.number, 200)

    async def stats(to):
        return {"limits": {"queue": 8, "decode_batch": 16}}

    monkeypatch.setattr(traffic, "send", send)
    monkeypatch.setattr(traffic, "stats", stats)
    gate = ServiceGate(Target("127.0.0.1", 1), 1)
    some = traffic.cases(16, 4, 1)
    below, over = asyncio.run(gate._loads(some))
    assert sorted(answered) == list(range(16)) and len(sent) == 8 + 3 * 8
    assert below.rate < gate.capacity < over.rate


def test_a_capacity_that_cannot_be_measured_is_said(monkeypatch):
    async def send(to, case):
        return Answer(case.number, 503)

    monkeypatch.setattr(traffic, "send", send)
    gate = ServiceGate(Target("127.0.0.1", 1), 1)
    with pytest.raises(UnavailableError, match="request 0 is not answered among others: status 503"):
        asyncio.run(gate._loads(traffic.cases(1, 4, 1)))


def test_a_run_in_which_all_is_well_passes():
    gate = held()
    gate.judge(True)
    assert gate.passed, gate.checks
    made = record(gate, "cpu", {"model": "made up"})
    assert made.verdict == "pass" and made.elements == 12 and to_json([made])
    assert len(summary(gate)) == 2 + len(gate.checks)


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda f: f.__name__.removeprefix("spoil_"))
def test_whatever_goes_wrong_fails_the_gate(spoil):
    gate = held()
    spoil(gate)
    gate.judge(True)
    assert not gate.passed and record(gate, "cpu", {}).verdict == "fail"


def test_a_service_that_is_not_ready_afterwards_fails_the_gate():
    gate = held()
    gate.judge(False)
    assert not gate.passed


def answers() -> list[oracle.Exchange]:
    asked = oracle.requests("m", 4, 8, 1)
    reply = {"tokens": [1, 2, 3], "usage": {"completion_tokens": 3}, "random_state": {"seed": 3}}
    return [dataclasses.replace(e, status=200, reply=copy.deepcopy(reply)) for e in asked]


def test_a_recording_equals_itself_and_survives_a_file(tmp_path):
    path = http_recording.save(tmp_path / "a.json.gz", {"model": "m"}, answers())
    facts, found = http_recording.load(path)
    assert facts == {"model": "m"} and found == answers()
    assert [oracle.compare(a, b) for a, b in zip(answers(), found, strict=True)] == [None] * len(found)
    assert http_recording.save(tmp_path / "b.json.gz", facts, found).read_bytes() == path.read_bytes()
    assert to_record(facts, found, [], "cpu", {}).verdict == "pass"


@pytest.mark.parametrize("faces", ["native", "openai completion", "openai chat", "anthropic messages"])
def test_every_face_is_asked(faces):
    assert any(exchange.name.startswith(faces) for exchange in answers())


def test_one_changed_token_is_named():
    before, after = answers(), answers()
    after[2].reply["tokens"][1] = 9
    found = [d for d in map(oracle.compare, before, after) if d is not None]
    assert [str(d) for d in found] == [f"{before[2].name}: reply.tokens[1]: 2 was recorded, 9 came"]
    assert to_record({}, after, found, "cpu", {}).verdict == "fail"


def test_a_missing_token_a_number_as_a_text_and_another_status_are_differences():
    before, after = answers(), answers()
    after[0].reply["tokens"].pop()
    after[1].reply["random_state"]["seed"] = "3"
    after[2] = dataclasses.replace(after[2], status=500)
    found = [d.where for d in map(oracle.compare, before, after) if d is not None]
    assert found == ["reply.tokens: items", "reply.random_state.seed", "status"]


def packed(body) -> bytes:
    return gzip.compress(json.dumps(body).encode())


def spoiled(change) -> bytes:
    """A recording whose body `change` has worked on."""
    exchanges = [dataclasses.asdict(e) for e in answers()]
    body = {
        "format": http_recording.FORMAT,
        "version": http_recording.VERSION,
        "facts": {"model": "m"},
        "exchanges": exchanges,
    }
    change(body)
    return packed(body)


NO_RECORDINGS = {
    "empty": (b"", "it is not JSON"),
    "no gzip": (b"not gzip", "not a gzip|not whole gzip"),
    "cut": (spoiled(lambda body: None)[:-20], "not whole gzip"),
    "damaged": (spoiled(lambda body: None)[:30] + b"\xff" * 40, "not whole gzip"),
    "list": (packed([1, 2]), "it is not crucible-http-oracle version 1"),
    "number": (packed(3), "it is not crucible-http-oracle version 1"),
    "nested": (gzip.compress(b"[" * 200_000), "it is not JSON"),
    "no answers": (spoiled(lambda body: body["exchanges"].clear()), "it has no answers"),
    "no facts": (spoiled(lambda body: body.pop("facts")), "its facts are None"),
    "facts list": (spoiled(lambda body: body.update(facts=[])), r"its facts are \[\]"),
    "exchanges object": (spoiled(lambda body: body.update(exchanges={"a": 1})), "not a list"),
    "exchange text": (spoiled(lambda body: body["exchanges"].insert(0, "x")), "exchange 0 does not have"),
    "unknown field": (spoiled(lambda body: body["exchanges"][1].update(more=1)), "exchange 1 does not have"),
    "body text": (spoiled(lambda body: body["exchanges"][2].update(body="x")), "body of exchange 2 is 'x'"),
    "status text": (spoiled(lambda body: body["exchanges"][0].update(status="200")), "status of exchange 0"),
    "status bool": (spoiled(lambda body: body["exchanges"][0].update(status=True)), "status of exchange 0"),
    "header break": (
        spoiled(lambda body: body["exchanges"][0].update(headers={"a": "b\r\nc: d"})),
        "cannot be sent",
    ),
    "header number": (spoiled(lambda body: body["exchanges"][0].update(headers={"a": 1})), "cannot be sent"),
    "path": (spoiled(lambda body: body["exchanges"][0].update(path="v1 x")), "cannot be sent"),
    "no token": (
        spoiled(lambda body: [one.update(reply=None) for one in body["exchanges"]]),
        "no answer with tokens",
    ),
}


@pytest.mark.parametrize("name", NO_RECORDINGS)
def test_what_is_no_recording_is_refused_in_a_sentence(tmp_path, name):
    raw, said = NO_RECORDINGS[name]
    path = tmp_path / "x.json.gz"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=f"is no recording: .*({said})") as refused:
        http_recording.load(path)
    assert "\n" not in str(refused.value)


def test_answers_that_are_none_are_not_recorded():
    http_recording.check_answers("there", answers())
    refused = answers()
    refused[1] = dataclasses.replace(refused[1], status=401, reply={"error": {"message": "no key"}})
    with pytest.raises(UnavailableError, match=r"does not answer native 1.*status 401, no key"):
        http_recording.check_answers("there", refused)
    with pytest.raises(UnavailableError, match="none of 11 requests with tokens"):
        http_recording.check_answers("there", [dataclasses.replace(e, reply={}) for e in answers()])
    too_long = {"error": {"message": "max_tokens 99999 is beyond the context"}}
    with pytest.raises(UnavailableError, match="nothing is recorded: max_tokens 99999 is beyond"):
        http_recording.check_answers(
            "there", [dataclasses.replace(e, status=400, reply=too_long) for e in answers()]
        )


def test_a_service_of_another_model_mode_or_contract_is_not_held_to_the_recording():
    recorded = {"model": "m", "mode": "f32", "contract_version": 1, "fingerprint": "fp_1", "limit queue": 8}
    other = {"model": "n", "mode": "int8", "contract_version": 2, "fingerprint": "fp_2", "limit queue": 9}
    assert http_facts.unlike(recorded, dict(recorded), http_facts.HELD + http_facts.TOLD) == []
    said = http_facts.unlike(recorded, other, http_facts.HELD)
    assert said == [
        "model: m was recorded, n answers",
        "mode: f32 was recorded, int8 answers",
        "contract version: 1 was recorded, 2 answers",
    ]
    assert http_facts.unlike(recorded, other, http_facts.TOLD) == [
        "fingerprint: fp_1 was recorded, fp_2 answers"
    ]
    assert http_facts.unlike({}, other, http_facts.HELD) == []
    assert to_record(recorded, answers(), [], "cpu", other, said).verdict == "fail"
    assert to_record(recorded, answers(), [], "cpu", other, (), ["fingerprint"]).verdict == "pass"
