"""Service A/B: statistics of runs made by hand, verdicts with their negative controls, and real processes."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.bench import ab_record, ab_workloads
from crucible.bench.ab_runs import Broken, Campaign, Oracle, Run
from crucible.bench.ab_statistics import METRICS, rows, sign_test
from crucible.bench.ab_verdict import Demand, marked, verdict
from crucible.bench.ab_workloads import STREAM, Workload
from crucible.errors import InputError, UnavailableError
from crucible.evidence.watch import Envelope
from crucible.service.load.samples import Sample, digest, load
from crucible.service.started import Side, arguments, build_at, own_build

STANDIN = Path(__file__).resolve().parents[1] / "service" / "load" / "standin.py"
SIDES = (Side("reference", own_build()), Side("auto", own_build()))
STILL = Envelope({"SM clock, MHz": (1900.0, 1910.0), "CPU time of others, %": (3.0, 4.0)})


def sample(ttft: float, burst: int, label="256", tokens=4, gap=0.01, sent=1.0) -> Sample:
    times = tuple(sent + ttft + i * gap for i in range(tokens))
    ids = tuple(range(tokens))
    return Sample(
        label,
        burst,
        burst == 0,
        256,
        None,
        sent,
        times[-1],
        200,
        times,
        ids,
        ids,
        digest(ids),
        finish="length",
    )


def burst_of(ttft: float, number: int) -> list[Sample]:
    return [sample(ttft, number), sample(1.2 * ttft, number)]


def campaign(factor=1.0, shake=0.0, rounds=3, bursts=6, envelope=STILL) -> Campaign:
    """Runs whose candidate takes `factor` of the baseline's TTFT; `shake` moves both sides up and down."""
    made = Campaign(SIDES, [Workload("2x256", (256, 256), 4, bursts)])
    for number in range(rounds):
        for side, scale in zip(SIDES, (1.0, factor), strict=True):
            sign = 1 if side is SIDES[0] else -1
            ttfts = (
                0.1 * (1 + 0.05 * number) * scale * (1 + sign * shake * (-1) ** (i + number))
                for i in range(bursts + 1)
            )
            found = [burst_of(ttft, i) for i, ttft in enumerate(ttfts)]
            here = envelope if (number, side.name) == (1, "auto") else STILL
            made.runs.append(Run(number, side.name, {"2x256": found}, here, 1.0))
    return made


def judged(made: Campaign, *demands: str):
    found = rows(made.of("reference"), made.of("auto"))
    return verdict(made, found, 3, [Demand.parse(one) for one in demands])


def test_a_row_is_medians_of_rounds_changes_of_pairs_and_an_interval_by_round():
    made = campaign(0.5)
    row = next(r for r in rows(made.of("reference"), made.of("auto")) if r.metric.name == "TTFT p50")
    assert row.baseline == pytest.approx((110.0, 115.5, 121.0)) and len(row.changes) == 18
    assert row.changes == pytest.approx([-50.0] * 18) and row.every_pair and row.gain == pytest.approx(50.0)
    assert row.interval.groups == 3 and row.outcome() == "improved"


def test_throughput_counts_from_the_first_sending_to_the_last_end():
    metric = next(m for m in METRICS if m.name == "throughput")
    assert metric.of(burst_of(0.1, 1)) == pytest.approx(8 / (0.12 + 0.03))


def test_gaps_are_those_of_the_stream_while_others_are_served():
    stream = sample(0.0, 1, STREAM, tokens=60, gap=0.01, sent=0.0)
    late = sample(0.05, 1, "535", tokens=25, sent=0.295)
    found = {m.name: m.of([stream, late]) for m in METRICS}
    assert found["TTFT p50"] == pytest.approx(50.0)
    assert found["stream gap p50"] == found["stream gap worst"] == pytest.approx(10.0)
    assert found["stream gap p95"] == pytest.approx(10.0)
    short = sample(0.05, 1, "535", tokens=2, sent=0.295)
    assert {m.name: m.of([stream, short]) for m in METRICS}["stream gap p95"] is None


def test_identical_sides_give_an_interval_that_holds_zero_and_nothing_to_accept():
    made = campaign(1.0, shake=0.03, bursts=5)
    for row in rows(made.of("reference"), made.of("auto")):
        assert row.interval.low <= 0 <= row.interval.high and row.outcome() == "not resolved"
    assert not (said := judged(made)).accepted and "none of" in said.reason


def test_three_rounds_that_agree_by_chance_resolve_nothing():
    assert sign_test([1, 1, 1]) == 0.25 and sign_test([1] * 8 + [-1]) < 0.05 < sign_test([1] * 7 + [-1] * 2)
    assert sign_test([0, 0]) == 1.0


@pytest.mark.parametrize(
    ("rounds", "bursts", "why"),
    [(1, 6, "one round resolves nothing"), (2, 2, "4 pairs of bursts resolve noth")],
)
def test_a_verdict_says_where_rounds_or_pairs_are_too_few_to_resolve_anything(rounds, bursts, why):
    made = campaign(0.6, rounds=rounds, bursts=bursts)
    found = rows(made.of("reference"), made.of("auto"))
    assert {row.outcome() for row in found} == {"not resolved"}
    said = verdict(made, found, rounds)
    assert not said.accepted and why in said.reason
    assert not any(row.too_few for row in rows(*(campaign(0.6, bursts=2).of(s.name) for s in SIDES)))


def test_a_faster_candidate_is_accepted_and_a_slower_one_refused():
    assert judged(campaign(0.6)).accepted
    slower = judged(campaign(1.3, shake=0.02))
    assert not slower.accepted and "2x256 TTFT p50 is" in slower.reason and "worse" in slower.reason
    assert judged(campaign(1.01)).reason.startswith("none of")


def test_a_demand_holds_for_every_pair():
    assert judged(campaign(0.6), "2x256:ttft:39").accepted
    assert "one has" in judged(campaign(0.6, shake=0.1), "2x256:ttft:39").reason
    assert "not measured" in judged(campaign(0.6), "4x941:ttft:20").reason
    assert judged(campaign(1.01), "2x256:TTFT:-2").accepted
    for bad in ("2x256", "2x256:speed:3", "2x256:stream:3", "2x256:TTFT:much", "2x256:TTFT:nan"):
        with pytest.raises(InputError):
            Demand.parse(bad)


@pytest.mark.parametrize(
    "moved", [{"SM clock, MHz": (1700.0, 1710.0)}, {"CPU time of others, %": (3.0, 40.0, 45.0)}]
)
def test_a_run_whose_envelope_jumps_is_marked_and_decides(moved):
    made = campaign(0.6, envelope=Envelope({**STILL.readings, **moved}))
    assert list(marked(made)) == ["round 2 auto"] and next(iter(moved)) in marked(made)["round 2 auto"][0]
    said = judged(made)
    assert not said.accepted and "round 2 auto" in said.reason


def test_an_envelope_that_stays_is_not_marked():
    assert not marked(campaign())


def test_one_changed_token_names_request_position_and_both_tokens():
    oracle, good = Oracle(), burst_of(0.1, 3)
    oracle.hold("reference in round 1", "2x256", good)
    oracle.hold("auto in round 1", "2x256", burst_of(0.2, 3))
    assert oracle.compared == 8
    changed = dataclasses.replace(good[1], tokens=(0, 1, 9, 3))
    with pytest.raises(Broken, match=r"token 2 of 2x256, burst 3, request 1 .* is 9 by auto .* and 2 by ref"):
        oracle.hold("auto in round 2", "2x256", [good[0], changed])
    with pytest.raises(Broken, match=r"token 3 .* is its end by auto"):
        oracle.hold("auto in round 2", "2x256", [good[0], dataclasses.replace(good[1], tokens=(0, 1, 2))])


def standin(name: str, *arguments: str) -> Side:
    return Side(name, own_build(), arguments, program=(str(STANDIN),))


SMALL = [Workload("2x8", (8, 8), 6, 2), Workload("arrival-8", (8,), 6, 1, 18)]


def test_processes_of_both_sides_are_fresh_every_round_and_their_tokens_equal():
    made = Campaign([standin("a"), standin("b", "--first", "0.02")], SMALL).run(3)
    assert [(r.round, r.side) for r in made.runs] == [
        (0, "a"),
        (0, "b"),
        (1, "b"),
        (1, "a"),
        (2, "a"),
        (2, "b"),
    ]
    assert not made.broken and made.oracle.compared == 5 * (3 * 12 + 2 * 24)
    found = rows(made.of("a"), made.of("b"))
    ttft = next(r for r in found if r.workload == "2x8" and r.metric.name == "TTFT p50")
    assert min(ttft.candidate) >= 20.0 and len(ttft.changes) == 6


def test_a_candidate_that_changes_one_token_is_refused_at_once():
    made = Campaign([standin("a"), standin("b", "--change", "4")], SMALL).run(3)
    assert "token 4 of 2x8, burst 0, request 0" in made.broken and not made.runs
    said = verdict(made, [], 3)
    assert not said.accepted and said.reason == made.broken
    made.sides = SIDES
    record = ab_record.to_record(made, [], 3, "cpu")
    assert record.verdict == "fail" and record.differing == 1


def test_an_interrupt_keeps_the_rounds_that_are_complete():
    made, calls = Campaign([standin("a"), standin("b")], SMALL[:1]), []

    def stop():
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt

    made.run(3, progress=stop)
    assert made.stopped and [r.round for r in made.runs] == [0, 0]
    assert "1 of 3 rounds" in verdict(made, rows(made.of("a"), made.of("b")), 3).reason


def test_a_second_ctrl_c_does_not_leave_the_service_behind(monkeypatch):
    waits = subprocess.Popen.wait

    def pressed(process, timeout=None):
        monkeypatch.setattr(subprocess.Popen, "wait", waits)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), standin("a").running() as server:
        monkeypatch.setattr(subprocess.Popen, "wait", pressed)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_service_that_does_not_start_is_one_sentence():
    broken = Side("a", own_build(), program=("-c", "import sys; print('no such model'); sys.exit(2)"))
    with pytest.raises(UnavailableError, match="side a ended before it took requests: no such model"):
        Campaign([broken, broken], SMALL).run(1)


def test_a_record_holds_verdict_changes_envelopes_and_its_raw_samples_come_back(tmp_path):
    made = campaign(0.6)
    found = rows(made.of("reference"), made.of("auto"))
    record = ab_record.to_record(made, found, 3, "cpu", [Demand.parse("2x256:ttft:39")], 2.0, {"model": "m"})
    assert [record.facts[name] for name in ("tokens", "bursts", "warmups", "tolerance, %")] == [4, 6, 1, 2.0]
    assert record.facts["demand 0"] == "2x256 TTFT p50 +39 %"
    assert record.kind == "service-ab" and record.facts["2x256, TTFT p50, outcome"] == "improved"
    assert record.facts["verdict"].startswith("accepted") and record.facts["baseline, crucible"]
    assert {s.name for s in record.samples} >= {"2x256, TTFT p50, auto"} and record.samples[0].groups
    assert any(name.startswith("envelope, round 1 auto, SM clock") for name in record.facts)
    taken, facts = load(ab_record.save_raw(tmp_path / "x.raw.json.gz", made))
    assert len(taken) == 6 * 7 * 2 == sum(count for *_, count in facts["runs"])


def test_the_standard_set_is_the_one_that_is_stated():
    made = {w.name: w for w in ab_workloads.standard()}
    assert list(made) == [
        *("4x256", "4x512", "4x941", "8x512", "2x33", "4x33", "8x33", "16x33", "mixed-8"),
        *("arrival-33", "arrival-535", "arrival-941", "arrival-mixed"),
    ]
    assert made["arrival-mixed"].lengths == (33, 127, 535, 941) and {w.tokens for w in made.values()} == {64}
    assert max(w.positions for w in made.values()) <= 1024
    assert {(w.warmups, w.bursts, w.all_bursts) for w in made.values()} == {(4, 6, 10)}


def test_workloads_are_chosen_by_name_by_beginning_or_made():
    known = ab_workloads.standard()
    assert [w.name for w in ab_workloads.choose(known, ["arrival", "4x512"])][-2:] == [
        "arrival-mixed",
        "4x512",
    ]
    (asked,) = ab_workloads.choose(known, ["3x77"])
    assert asked.lengths == (77, 77, 77) and asked.warmups == known[0].warmups
    for wrong in ("sideways", ""):
        with pytest.raises(InputError, match="unknown workload"):
            ab_workloads.choose(known, [wrong])


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"bursts": -1}, {"warmups": 0}])
def test_a_set_that_measures_nothing_is_refused(wrong):
    for made in (ab_workloads.standard, ab_workloads.quick):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} .*must be at least 1"):
            made(**wrong)


def test_a_models_path_means_the_same_in_another_folder_and_a_known_name_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("own", "smollm2", "synthetic-2x64"):
        (tmp_path / name).mkdir()
    named = [arguments(name, "f32", "cpu")[1] for name in ("own", "smollm2", "synthetic-2x64", "nowhere")]
    assert named == [str(tmp_path / "own"), "smollm2", "synthetic-2x64", "nowhere"]


def test_a_build_is_an_environment_its_python_or_a_checkout(tmp_path):
    checkout = Path(own_build().checkout)
    assert build_at(checkout).checkout == str(checkout) and build_at(None) == own_build()
    assert build_at(Path(sys.executable)).python == sys.executable
    with pytest.raises(InputError, match="no build of crucible"):
        build_at(tmp_path)
    (tmp_path / "crucible").mkdir()
    (tmp_path / "crucible" / "__init__.py").touch()
    with pytest.raises(UnavailableError, match="does not run this build"):
        build_at(tmp_path).identity()


def test_no_key_of_the_callers_shell_reaches_a_service_that_is_started_here(monkeypatch):
    monkeypatch.setenv("CRUCIBLE_API_KEY", "open-sesame")
    for build in (own_build(), build_at(Path(sys.prefix))):
        assert "CRUCIBLE_API_KEY" not in build.environment()
