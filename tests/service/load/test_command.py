"""`crucible load` against a real service, and what it, ab and sweep refuse before anything is sent."""

import json
import sys

import pytest

from crucible.cli import main as cli
from crucible.engine.request import Request
from crucible.evidence.record import load as load_record
from crucible.gates import http_recording
from crucible.service.load import samples
from crucible.service.load.asks import closed


@pytest.fixture
def crucible(monkeypatch, capsys):
    """Run the command line in this process: crucible(*arguments) -> (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["crucible", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_bursts_get_the_engines_tokens_and_no_token_before_the_server_has_it(
    crucible, tiny_server, alone, tmp_path
):
    raw, record = tmp_path / "raw.json.gz", tmp_path / "load.json"
    code, out, _ = crucible(
        *("load", "--url", tiny_server.url, "--shape", "3x20", "--bursts", 2, "--max-tokens", 5),
        *("--raw", raw, "--json", record),
    )
    assert code == 0 and "6 of 6 requests answered, 30 tokens" in out and "3 warmups apart" in out
    assert "TTFT: arrival of the first token" in out
    taken, _ = samples.load(raw)
    for sample in taken:
        if not sample.warmup:
            assert sample.ttft >= sample.server["first_token"] >= 0
            assert sample.end_to_end >= sample.server["total"]
    asks = closed([20] * 3, 5, 1, 2)
    expected = {alone(Request(ask.prompt, 5, ignore_eos=True)).tokens.__str__() for ask in asks}
    assert {str(list(s.tokens)) for s in taken if s.burst == 2} == expected
    (made,) = load_record(record)
    assert made.kind == "load" and made.verdict == "measured" and made.facts["raw samples"] == raw.name


def test_open_arrivals_are_sent_at_their_times_over_the_openai_face(crucible, tiny_server, tmp_path):
    raw = tmp_path / "raw.json.gz"
    code, out, _ = crucible(
        *("load", "--url", tiny_server.url, "--face", "openai", "--arrivals", "poisson", "--rate", 200),
        *("--count", 6, "--lengths", "9,20", "--max-tokens", 3, "--raw", raw),
    )
    assert code == 0 and "6 of 6 requests answered, 18 tokens" in out
    timed = [s for s in samples.load(raw)[0] if not s.warmup]
    assert all(s.usage == 3 and s.sent >= s.planned for s in timed)


def test_the_check_against_the_sdk_measures_both_clients_in_turn(crucible, tiny_server, tmp_path):
    pytest.importorskip("openai")
    record = tmp_path / "check.json"
    code, out, _ = crucible(
        *("load", "--url", tiny_server.url, "--shape", "2x20", "--bursts", 2, "--max-tokens", 4),
        *("--check-against", "openai", "--json", record),
    )
    (made,) = load_record(record)
    assert code == (made.verdict == "fail") and "openai" in out and "failed" not in out
    assert {s.name for s in made.samples} >= {"TTFT, crucible load", "TTFT, openai SDK"}
    assert all(len(s.values) == 2 for s in made.samples)


def test_a_recording_names_the_service_that_answered_and_holds_it_to_itself(crucible, tiny_server, tmp_path):
    answers, record = tmp_path / "a.json.gz", tmp_path / "a.json"
    http = ("gate", "http", "--url", tiny_server.url)
    code, out, err = crucible(*http, "--record", answers, "--requests", 3, "--max-tokens", 4)
    assert code == 0 and "answers of tiny" in out, err
    facts, exchanges = http_recording.load(answers)
    assert facts["model"] == "tiny" and facts["build"] == "unknown build" and "mode" not in facts
    assert facts["fingerprint"] == tiny_server.service.backend.card.fingerprint()
    assert facts["limit queue"] == tiny_server.service.backend.limits.queue and facts["requests"] == 3
    code, out, _ = crucible(*http, "--against", answers, "--json", record)
    assert code == 0 and "0 differ" in out
    assert load_record(record)[0].facts["build"] == "unknown build"

    http_recording.save(answers, facts | {"model": "another", "fingerprint": "fp_0"}, exchanges)
    code, out, _ = crucible(*http, "--against", answers)
    assert code == 1 and "not the same service: model: another was recorded, tiny answers" in out
    assert "note: fingerprint: fp_0 was recorded" in out


def test_a_recording_without_a_mode_is_not_held_to_a_guess(crucible, tiny_server, tmp_path):
    answers = tmp_path / "a.json.gz"
    crucible(
        "gate", "http", "--url", tiny_server.url, "--record", answers, "--requests", 1, "--max-tokens", 2
    )
    code, _, err = crucible("gate", "http", "--against", answers)
    assert code == 2 and "does not say its mode" in err and len(err.splitlines()) == 1


REFUSED = [
    (("load", "--url", "http://10.1.2.3:80"), "--allow-remote"),
    (("load", "--url", "http://127.0.0.1:9"), "start one with crucible serve"),
    (("load", "--face", "anthropic"), "choose native or openai"),
    (("load", "--shape", "4y4"), "REQUESTSxTOKENS"),
    (("load", "--arrivals", "bursty"), "choose fixed or poisson"),
    (("load", "--arrivals", "fixed", "--lengths", "3,x"), "with commas"),
    (("load", "--check-against", "curl"), "choose openai"),
    (("gate", "http"), "give --record FILE"),
    (("gate", "http", "--record", "a", "--against", "b"), "give --record FILE"),
    (("gate", "http", "--record", "a", "--json", "b"), "leave out --json"),
    (("gate", "http", "--record", "a", "--url", "http://localhost:9", "--model", "x"), "leave out --model"),
    (
        ("gate", "http", "--record", "a", "--url", "http://localhost:9", "--mode", "f32", "--device", "cpu"),
        "leave out --mode and --device",
    ),
    (("gate", "http", "--record", "a", "--url", "http://localhost:9", "--build", "b"), "leave out --build"),
    (("gate", "http", "--record", "a", "--url", "http://localhost:9"), "start one with crucible serve"),
    (
        ("gate", "http", "--against", "a", "--max-tokens", "3", "--seed", "1"),
        "leave out --max-tokens and --s",
    ),
    (("gate", "http", "--against", "nowhere"), "cannot read nowhere: No such file"),
    (("ab", "--candidate", "online-q2-k32"), "does not keep the contract's bits"),
    (("ab", "--candidate", "mine.py:attention"), "crucible diagnose"),
    (("ab", "--candidate", "nowhere.cu"), "no kernel file"),
    (("ab", "--workload", "sideways"), "unknown workload"),
    (("ab", "--demand", "4x512:35"), "WORKLOAD:METRIC:PERCENT"),
    (("ab", "--baseline-env", "."), "no build of crucible"),
    (("sweep", "--plot", "sweep.pdf"), ".svg or .png"),
    (("sweep", "--model", "nowhere"), "nowhere"),
]


@pytest.mark.parametrize("arguments, said", REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_what_cannot_be_measured_is_refused_in_a_sentence(crucible, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = crucible(*arguments)
    assert code == 2 and said in err and err.startswith("error: ") and len(err.splitlines()) == 1


def test_a_load_that_is_stopped_writes_what_is_done(crucible, tiny_server, tmp_path, monkeypatch):
    from crucible.service.load import plan

    sent = plan.client.run

    async def stopped(to, asks, log, burst, warmup):
        if burst == 2:
            raise KeyboardInterrupt
        return await sent(to, asks, log, burst, warmup)

    monkeypatch.setattr(plan.client, "run", stopped)
    record = tmp_path / "load.json"
    code, out, err = crucible(
        *("load", "--url", tiny_server.url, "--shape", "1x9", "--max-tokens", 2, "--json", record)
    )
    assert code == 130 and "1 of 1 requests answered" in out and "interrupted" in err
    assert json.loads(record.read_text())["records"][0]["facts"]["interrupted"] is True
