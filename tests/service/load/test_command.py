"""`crucible load` against a real service, and what it, ab and sweep refuse before anything is sent."""

import contextlib
import json
import sys

import pytest

from crucible.bench.ab_verdict import Demand
from crucible.cli import ab as cli_ab
from crucible.cli import gate_http
from crucible.cli import load as cli_load
from crucible.cli import main as cli
from crucible.cli.serve import exact_variant
from crucible.engine.request import Request
from crucible.errors import InputError
from crucible.evidence.record import load as load_record
from crucible.gates import http_recording
from crucible.service.load import asks, check, plan, samples
from crucible.service.load.asks import closed
from crucible.service.state import Settings


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
    asked = closed([20] * 3, 5, 1, 2)
    expected = {alone(Request(ask.prompt, 5, ignore_eos=True)).tokens.__str__() for ask in asked}
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


def test_a_check_that_is_stopped_writes_the_pairs_that_are_complete(
    crucible, tiny_server, tmp_path, monkeypatch
):
    pytest.importorskip("openai")
    sent = check.client.run

    async def stopped(to, asks, log, burst, warmup):
        if burst == 3:  # of four: a warmup, two pairs, and the SDK's part of a third
            raise KeyboardInterrupt
        return await sent(to, asks, log, burst, warmup)

    monkeypatch.setattr(check.client, "run", stopped)
    raw, record = tmp_path / "raw.json.gz", tmp_path / "check.json"
    code, out, _ = crucible(
        *("load", "--url", tiny_server.url, "--shape", "1x9", "--bursts", 3, "--max-tokens", 4),
        *("--check-against", "openai", "--raw", raw, "--json", record),
    )
    (made,) = load_record(record)
    assert code == 130 and "interrupted; the figures are those of the first 2 pairs" in out
    assert made.verdict == "measured" and made.facts["pairs of bursts"] == 2 and made.facts["interrupted"]
    assert [s.burst for s in samples.load(raw)[0]] == [1, 2, 1, 2]


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


@pytest.fixture(scope="module")
def locked(serve_once, tiny):
    """A server that asks for the key open-sesame."""
    return serve_once(tiny, settings=Settings("tiny", "open-sesame"))


def test_the_http_gate_brings_the_key_of_a_service_that_asks_for_one(crucible, locked, tmp_path, monkeypatch):
    ask = ("gate", "http", "--url", locked.url, "--record", tmp_path / "a.json.gz", "--requests", 1)
    code, _, err = crucible(*ask)
    assert code == 2 and "status 401" in err and "--api-key" in err and len(err.splitlines()) == 1
    assert crucible(*ask, "--max-tokens", 2, "--api-key", "open-sesame")[0] == 0
    monkeypatch.setenv("CRUCIBLE_API_KEY", "open-sesame")
    assert crucible(*ask, "--max-tokens", 2)[0] == 0


def test_a_recording_without_a_mode_is_not_held_to_a_guess(crucible, tiny_server, tmp_path):
    answers = tmp_path / "a.json.gz"
    crucible(
        "gate", "http", "--url", tiny_server.url, "--record", answers, "--requests", 1, "--max-tokens", 2
    )
    code, _, err = crucible("gate", "http", "--against", answers)
    assert code == 2 and "does not say its mode" in err and len(err.splitlines()) == 1


def test_a_prompt_longer_than_the_services_context_is_refused_before_it_is_made(
    crucible, tiny_server, monkeypatch
):
    monkeypatch.setattr(asks, "prompt", lambda *_: pytest.fail("a prompt was made"))
    context = tiny_server.service.backend.card.config.context
    for how in (
        ("--shape", f"2x{context + 1}"),
        ("--arrivals", "fixed", "--lengths", f"9,{context + 1}"),
        ("--shape", f"2x{context + 1}", "--check-against", "openai"),
    ):
        code, _, err = crucible("load", "--url", tiny_server.url, *how)
        assert code == 2 and f"longer than the service's context of {context}" in err
        assert len(err.splitlines()) == 1


def test_more_tokens_than_the_service_has_room_for_are_refused_before_anything_is_sent(crucible, tiny_server):
    context = tiny_server.service.backend.card.config.context
    for length, offered in ((9, f" or a --max-tokens of at most {context - 9}\n"), (context, "prompts\n")):
        how = ("--shape", f"1x{length}", "--max-tokens", context - 8)
        code, out, err = crucible("load", "--url", tiny_server.url, *how)
        assert code == 2 and not out and err.endswith(offered) and len(err.splitlines()) == 1


def test_bursts_are_made_one_at_a_time(monkeypatch):
    made = []
    monkeypatch.setattr(plan.asks, "closed", lambda lengths, *rest: made.append(rest[-1]) or [])
    many = plan.closed("2x8", 10**9, 4, 1, 1)
    assert many.requests == 2 * (10**9 + 1) and not made
    next(many.bursts)
    assert made == [0]


REFUSED = [
    (("load", "--url", "http://10.1.2.3:80"), "--allow-remote"),
    (("load", "--url", "http://127.0.0.1:9"), "start one with crucible serve"),
    (("load", "--face", "anthropic"), "choose native or openai"),
    (("load", "--shape", "99999x99999"), "requests of a burst 99999 must be at most 4096"),
    (("load", "--shape", ""), "REQUESTSxTOKENS"),
    (("load", "--arrivals", "bursty"), "choose fixed or poisson"),
    (("load", "--arrivals", "fixed", "--lengths", "3,x"), "with commas"),
    (("load", "--shape", "2x8", "--arrivals", "fixed"), "--shape: of bursts and not of --arrivals"),
    (("load", "--arrivals", "fixed", "--rate", "1e-300", "--count", "2"), "give a higher --rate"),
    (
        ("load", "--arrivals", "poisson", "--rate", "5e-324", "--count", "1"),
        "take inf s, more than the 86400",
    ),
    (("load", "--raw", "x", "--json", "./x"), "--raw and --json both name x; give each a file of its own"),
    (("sweep", "--json", "x.svg", "--plot", "x.svg"), "--json and --plot both name x.svg"),
    (("load", "--check-against", "curl"), "choose openai"),
    (("gate", "http", "--record", "a", "--url", "http://localhost:9", "--model", "x"), "leave out --model"),
    (("gate", "http", "--record", "a", "--url", "http://localhost:9"), "start one with crucible serve"),
    (("gate", "http", "--against", "nowhere"), "cannot read nowhere: No such file"),
    (("ab", "--candidate", "online-q2-k32"), "does not keep the contract's bits"),
    (("ab", "--candidate", "mine.py:attention"), "crucible diagnose"),
    (("ab", "--candidate", "nowhere.cu"), "no kernel file"),
    (("ab", "--workload", "sideways"), "unknown workload"),
    (("ab", "--demand", "4x512:35"), "WORKLOAD:METRIC:PERCENT"),
    (("ab", "--quick", "--demand", "4x512:TTFT:35"), "is not run; demand of 2x96, 4x16, mixed-3, arrival-96"),
    (("ab", "--tolerance", "inf"), "no number of per cent"),
    (("ab", "--baseline-env", "."), "no build of crucible"),
    (("sweep", "--plot", "sweep.pdf"), ".svg or .png"),
    (("sweep", "--model", "nowhere"), "nowhere"),
]


@pytest.mark.parametrize("arguments, said", REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_what_cannot_be_measured_is_refused_in_a_sentence(crucible, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = crucible(*arguments)
    assert code == 2 and said in err and err.startswith("error: ") and len(err.splitlines()) == 1


@pytest.mark.parametrize("shape", ["4y4", "4", "4x4x4", "\u00b2x4", "-1x4", "0x4", "4x0", "9" * 5000 + "x1"])
def test_what_is_no_shape_is_refused_in_a_short_sentence(shape):
    with pytest.raises(InputError) as refused:
        plan.closed(shape, 1, 4, 1, 1)
    assert len(str(refused.value)) < 200


def test_what_a_client_cannot_hold_is_refused_before_a_prompt_is_made(monkeypatch):
    monkeypatch.setattr(asks, "prompt", lambda *_: pytest.fail("a prompt was made"))
    for lengths, count, said in (
        ([64], 99999, "arrivals 99999 must be at most 65536"),
        ([9, 99999], 900, "8,388,608"),
        ([64], 65536, None),
    ):
        with pytest.raises(InputError, match=said) if said else contextlib.nullcontext():
            plan.arriving("fixed", 1.0, count, lengths, 4, 1, 1)
    with pytest.raises(InputError, match="8,388,608"):
        plan.closed("4096x4096", 1, 4, 1, 1)
    with pytest.raises(InputError, match="positive number of requests"):
        plan.arriving("poisson", float("nan"), 3, [4], 4, 1, 1)
    with pytest.raises(InputError, match="at most 8388608"):
        plan.parse("9000000")


@pytest.mark.parametrize(
    "arrivals, check, face, model, more, said",
    [
        ("fixed", None, None, "", {"bursts": 2, "shape": "2x8"}, "--bursts and --shape: of bursts"),
        (None, None, None, "", {"rate": 2.0}, "--rate: of arrivals; give --arrivals, or leave it out"),
        (None, None, "openai", "m", {"lengths": "64"}, "--lengths: of arrivals"),
        (None, None, None, "m", {}, "leave out --model"),
        (None, None, "native", "m", {}, "leave out --model"),
        (None, "openai", "native", "", {}, "leave out --face native"),
        ("fixed", "openai", None, "", {}, "leave out --arrivals"),
    ],
)
def test_an_option_that_load_would_not_read_is_refused(arrivals, check, face, model, more, said):
    with pytest.raises(InputError, match=said):
        cli_load.refuse_unused(arrivals, check, face, model, **more)
    cli_load.refuse_unused("fixed", None, "openai", "m", shape=None, rate=2.0)
    cli_load.refuse_unused(None, "openai", None, "m", shape="2x8", rate=None)


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "give --record FILE"),
        ({"record": 1, "against": 1}, "give --record FILE"),
        ({"record": 1, "json": 1}, "leave out --json"),
        ({"record": 1, "url": 1, "mode": 1, "device": 1}, "leave out --mode and --device"),
        ({"against": 1, "url": 1, "build": 1}, "leave out --build"),
        ({"against": 1, "max_tokens": 3, "seed": 0}, "leave out --max-tokens and --seed"),
        ({"against": 1, "requests": 3}, "leave out --requests"),
        ({"against": 1, "api_key": "k"}, "add --url"),
    ],
)
def test_an_option_that_the_http_gate_would_not_read_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        gate_http.refuse(**given)
    gate_http.refuse(record=1, build=1, model=1, requests=3, seed=0, url=None, json=None)
    gate_http.refuse(against=1, url=1, json=1, seed=None)


def test_a_name_that_no_service_takes_is_answered_with_names_that_one_does():
    for wrong, near in (("online-q2-k32", "exact-q2-k32"), ("exakt", "exact"), ("zzz", "auto, reference")):
        with pytest.raises(InputError) as refused:
            cli_ab.whole_path(wrong)
        assert f"a service takes {near}" in str(refused.value)
        offered = str(refused.value).split("a service takes ")[1].split(", ")
        assert [exact_variant(name) for name in offered] == offered
    assert cli_ab.whole_path("auto") == "auto"


def test_a_demand_of_a_workload_that_is_not_run_is_refused():
    chosen = cli_ab.choose(False, ["4x512", "3x77"], None, None)
    cli_ab.refuse_unrun([Demand.parse("3x77:TTFT:35"), Demand.parse("4x512:TTFT:35")], chosen)
    with pytest.raises(InputError, match="'4x256' of a demand is not run; demand of 4x512, 3x77"):
        cli_ab.refuse_unrun([Demand.parse("4x256:TTFT:35")], chosen)


def test_a_workload_that_the_model_has_no_room_for_is_refused():
    chosen = cli_ab.choose(False, ["4x512", "1x941"], None, None)
    cli_ab.refuse_too_long(chosen, 941 + 64)
    with pytest.raises(InputError, match=r"workload 1x941 has a prompt of 941 tokens .* context is 940"):
        cli_ab.refuse_too_long(chosen, 940)
    with pytest.raises(InputError, match=r"1x941 reaches 1005 positions .* context is 1004; give"):
        cli_ab.refuse_too_long(chosen, 1004)


@pytest.mark.parametrize("command", ["ab", "sweep"])
def test_requests_that_no_service_could_answer_are_no_verdict_on_a_candidate(crucible, command, monkeypatch):
    run = "crucible.bench.ab_runs.Campaign.run"
    monkeypatch.setattr(run, lambda *_: pytest.fail("a service was started"))
    code, _, err = crucible(command, "--model", "synthetic-2x64", "--quick", "--tokens", 500)
    assert code == 2 and "reaches 3033 positions" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("command", ["ab", "sweep"])
def test_raw_samples_that_cannot_be_written_are_refused_before_anything_runs(crucible, command, tmp_path):
    (tmp_path / "x.raw.json.gz").mkdir()
    code, _, err = crucible(command, "--model", "synthetic-2x64", "--json", tmp_path / "x.json")
    assert code == 2 and "x.raw.json.gz: it is not a regular file" in err


def test_a_load_that_is_stopped_writes_what_is_done(crucible, tiny_server, tmp_path, monkeypatch):
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
