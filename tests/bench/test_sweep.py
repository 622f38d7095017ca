"""The policy sweep: which policies, what they trade, and that none moves a token."""

import dataclasses
from pathlib import Path

import pytest

from crucible.bench import sweep
from crucible.bench.ab_runs import Campaign, Run
from crucible.bench.ab_workloads import STREAM, Workload
from crucible.engine.scheduler import Limits
from crucible.errors import InputError
from crucible.evidence.watch import Envelope
from crucible.report import service_sweep
from crucible.report.plots.service import tradeoff
from crucible.report.plots.style import png
from crucible.service.load.samples import Sample
from crucible.service.started import own_build

STANDIN = Path(__file__).resolve().parents[1] / "service" / "load" / "standin.py"
ARRIVAL = Workload("arrival-8", (8,), 4, 3, 40)
FIRST, WORST = ("arrival-8", "TTFT p50"), ("arrival-8", "stream gap worst")


def sample(label: str, burst: int, sent: float, ttft: float, gaps: list[float]) -> Sample:
    times = (sent + ttft, *(sent + ttft + sum(gaps[: i + 1]) for i in range(len(gaps))))
    ids = tuple(range(len(times)))
    return Sample(label, burst, burst == 0, 8, None, sent, times[-1], 200, times, ids, ids)


def burst_of(number: int, ttft: float, worst: float) -> list[Sample]:
    """A stream whose gaps are 10 ms, and once `worst` while the newcomer's prompt runs."""
    return [
        sample(STREAM, number, 0.0, 0.01, [0.01] * 5 + [worst] + [0.01] * 30),
        sample("8", number, 0.06, ttft, [0.01] * 3),
    ]


@pytest.fixture
def campaign() -> Campaign:
    """Two rounds of the control, one that answers late and one that is calm."""
    made = Campaign(sweep.sides(sweep.policies((1024, 256), (64,)), own_build(), ()), [ARRIVAL])
    figures = ((0.05, 0.04), (0.075, 0.04), (0.1, 0.02))
    for number in range(2):
        for side, (ttft, worst) in zip(made.sides, figures, strict=True):
            bursts = [burst_of(i, ttft * (1 + number / 10), worst) for i in range(4)]
            made.runs.append(Run(number, side.name, {"arrival-8": bursts}, Envelope({}), 1.0))
    made.oracle.compared = 99
    return made


def test_the_policies_are_the_stated_ones_and_the_control_is_the_default():
    made = sweep.policies()
    assert list(map(str, made)) == [
        *("budget 1024, no cap", "budget 512, no cap", "budget 256, no cap"),
        *("budget 1024, cap 256", "budget 1024, cap 128", "budget 1024, cap 64"),
    ]
    assert (made[0].budget, made[0].cap) == (Limits().prefill_budget, Limits().chunk_cap)
    assert sweep.labelled(str(made[0])).endswith("(default)") and sweep.labelled(str(made[1])) == str(made[1])
    assert made[3].arguments == ("--prefill-budget", "1024", "--chunk-cap", "256")


@pytest.mark.parametrize(
    "budgets, caps",
    [
        ((), ()),
        ((1024,), ()),
        ((0, 1), ()),
        ((8,), (-1,)),
        ((64, 64), ()),
        ((64,), (8, 8)),
        ((64, 32), (64,)),
    ],
)
def test_a_sweep_of_nothing_or_of_the_same_thing_twice_is_refused(budgets, caps):
    with pytest.raises(InputError):
        sweep.policies(budgets, caps)


def test_every_policy_is_held_to_the_control_of_its_round(campaign):
    control, late, calm = sweep.trades(campaign)
    assert control.rows == {} and control.own[FIRST].low == pytest.approx(50.0)
    assert late.rows[FIRST].changes == pytest.approx([50.0] * 6) and late.rows[WORST].gain == pytest.approx(
        0.0
    )
    assert calm.own[WORST].median == pytest.approx(20.0) and calm.rows[WORST].gain == pytest.approx(50.0)
    assert calm.rows[WORST].rounds == ("0", "0", "0", "1", "1", "1")


def test_the_reason_names_the_calmest_and_what_it_costs(campaign):
    found = sweep.trades(campaign)
    assert sweep.reason(campaign, found) == (
        "budget 1024, no cap (default): arrivals wait 52.5 ms (TTFT p50) and the stream stands still 40 ms "
        "at worst; budget 1024, cap 64 has the shortest worst gap, 20 ms, and changes the arrivals' TTFT by "
        "+100.0 %"
    )
    assert "shortest worst gap" not in sweep.reason(campaign, found[:2])


@pytest.mark.parametrize(
    ("factors", "said"),
    [((0.5, 0.5, 0.5), "in pairs -50.0 %"), ((0.9, 1.2, 0.9), "in pairs -10.0 %, not resolved")],
)
def test_a_shorter_ttft_is_named_with_what_its_pairs_say(campaign, factors, said):
    late = campaign.sides[1].name
    for run in [run for run in campaign.runs if run.side == late]:
        for burst, factor in zip(run.bursts["arrival-8"][1:], factors, strict=True):
            burst[1] = sample("8", burst[1].burst, 0.06, factor * burst[1].ttft / 1.5, [0.01] * 3)
    text = sweep.reason(campaign, sweep.trades(campaign))
    assert f"{late} has the shortest TTFT, " in text and text.endswith(said)


def test_the_record_the_table_and_the_picture_hold_every_policy(campaign):
    record = sweep.to_record(campaign, 2, "cpu")
    assert record.kind == "policy-sweep" and record.verdict == "pass" and record.elements == 99
    assert record.facts["policy 2"] == "budget 1024, cap 64" and "reason" in record.facts
    assert [record.facts[name] for name in ("tokens", "bursts", "warmups")] == [4, 3, 1]
    assert sweep.to_record(campaign, 3, "cpu").verdict == "measured"
    assert len(service_sweep.tradeoffs(campaign).rows) == 3 and "(+100.0*)" in service_sweep.text(campaign)
    assert png(tradeoff(sweep.trades(campaign), "arrival-8")).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "at, said", [(1, "budget 1024, cap 64 has the shortest"), (0, "nothing can be said")]
)
def test_a_policy_whose_stream_left_no_gap_is_shown_without_one(campaign, at, said):
    for run in campaign.runs:
        if run.side == campaign.sides[at].name:
            run.bursts["arrival-8"][-1][0] = sample(STREAM, 3, 0.0, 0.01, [])  # over before the newcomer came
    assert said in sweep.reason(campaign, sweep.trades(campaign))
    assert said in service_sweep.text(campaign)
    assert png(tradeoff(sweep.trades(campaign), "arrival-8")).startswith(b"\x89PNG")


def test_a_policy_that_moves_a_token_fails_the_sweep():
    found = sweep.sides(sweep.policies((1024, 256), ()), own_build(), ())
    wrong = ((), ("--change", "2"))
    made = [
        dataclasses.replace(side, program=(str(STANDIN),), arguments=(*side.arguments, *more))
        for side, more in zip(found, wrong, strict=True)
    ]
    campaign = Campaign(made, [Workload("2x8", (8, 8), 4, 1)]).run(1)
    record = sweep.to_record(campaign, 1, "cpu")
    assert record.verdict == "fail" and "token 2 of 2x8" in record.facts["broken"]
