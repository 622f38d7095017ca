"""The results report: a line for every gate, ran or not; failures by name; no kind of time beside another."""

import importlib
import json
from dataclasses import replace

import pytest
import typer

from crucible.cli.main import COMMANDS
from crucible.errors import InputError
from crucible.evidence.environment import Environment
from crucible.evidence.record import Record, Series, save
from crucible.report import drift_rates, gate_table, services, speeds
from crucible.report.gathered import THIS_RUN, Kept, gather, machines_table, of_kind
from crucible.report.notebooks import root
from crucible.report.plots import results
from crucible.report.plots.style import png
from crucible.report.tables import or_not_run, table

try:
    root()
except InputError as error:  # the package and its tests alone, as on a machine that only measures
    pytest.skip(str(error), allow_module_level=True)

MADE = Environment(
    *("0", 1, "d", "abcdef1234", False, "cuda", "NVIDIA H200", "", "", "", "", "3", "Linux"),
    taken_at="2026-01-02T03:04:05+00:00",
)
GATE = Record("tensor gate: exact", "c", "x", "pass", 9, 9, 9, 0, {"comparisons": 4}, environment=MADE)


def kept(*records: Record, machine: str = "h200") -> list[Kept]:
    return [Kept(machine, f"outputs/{machine}/x.json", item) for item in records]


def row(found, first: str):
    return next(r for r in found.rows if first in r)


def test_every_gate_has_a_line_and_one_without_a_record_says_so():
    found = gate_table.gates_table(kept(GATE))
    assert {r[1] for r in found.rows} == {g.name for g in gate_table.GATES}
    assert row(found, "tensor") == (
        "pass",
        "tensor",
        "cuda, h200",
        "4 comparisons",
        9,
        0,
        "abcdef1, 2026-01-02",
    )
    assert [r[0] for r in found.rows].count("not run") == len(gate_table.GATES) - 1
    assert "not run: conformance, model, devices" in gate_table.verdict_sentence(kept(GATE))


def test_one_failing_record_fails_its_line_and_is_named_in_the_verdict():
    bad = replace(GATE, kind="tensor gate: poison", claim="no poison", verdict="fail", facts={"rows": 3})
    found = kept(GATE, bad)
    assert row(gate_table.gates_table(found), "tensor")[0] == "fail"
    assert 'tensor fails on cuda, h200: "no poison" does not hold (rows 3)' in gate_table.verdict_sentence(
        found
    )


def test_a_measured_record_alone_is_no_pass():
    stopped = replace(GATE, verdict="measured")
    assert row(gate_table.gates_table(kept(stopped)), "tensor")[0] == "measured"
    assert "0 of 10 lines pass" in gate_table.verdict_sentence(kept(stopped))


def test_devices_and_machines_have_lines_of_their_own():
    cpu = replace(GATE, environment=replace(MADE, device="cpu"))
    found = gate_table.lines([*kept(GATE, cpu), *kept(GATE, machine="cpu-2core")])
    assert [one.where for one in found if one.records] == ["cuda, h200", "cpu, h200", "cuda, cpu-2core"]
    assert len(machines_table([*kept(GATE, cpu), *kept(GATE, machine="cpu-2core")]).rows) == 3


def test_parts_belong_to_their_gate_and_other_kinds_with_its_name_do_not():
    found = kept(
        *(replace(GATE, kind=k) for k in ("drift: q2, gumbel-id", "drift-diagnosis", "drift: controls"))
    )
    assert [k.record.kind for k in of_kind(found, "drift")] == ["drift: q2, gumbel-id", "drift: controls"]


def test_every_claim_keeps_its_own_words_however_many_a_gate_has():
    many = [replace(GATE, kind=f"drift: {n}, gumbel-id", claim=f"how often {n} flips") for n in range(30)]
    found = gate_table.claims_table(kept(*many, *[replace(GATE, kind="conformance")] * 30))
    said = [r[3] for r in found.rows]
    assert said == ["each of 30 sections has the contract's bits", *(one.claim for one in many)]


def test_a_record_of_this_run_shows_no_time():
    assert kept(GATE, machine=THIS_RUN)[0].state == ""
    assert "2026" not in gate_table.gates_table(kept(GATE, machine=THIS_RUN)).markdown()


def test_every_command_of_the_report_exists_or_belongs_to_a_gate_that_was_not_run():
    app = typer.Typer()
    for name in COMMANDS:
        importlib.import_module(f"crucible.cli.{name}").register(app)
    known = typer.main.get_command(app)
    texts = [g.command for g in gate_table.GATES if g.name != "service"]
    texts += [text for _, text in speeds.COMMANDS]
    for text in texts:
        words = text.split()
        if words[0] == "crucible":
            command = known.commands[words[1]]
            if hasattr(command, "commands"):
                assert words[2] in command.commands, text


def test_committed_records_of_named_machines_load_and_other_json_is_left_alone(tmp_path):
    assert {k.machine for k in gather(None, ["outputs/h200", "outputs/cpu-2core"])} == {"h200", "cpu-2core"}
    save(tmp_path / "m" / "a.json", [GATE])
    (tmp_path / "m" / "run.json").write_text(json.dumps({"format": "crucible-run"}))
    assert [k.file for k in gather(None, ["m", "absent"], tmp_path)] == ["m/a.json"]
    assert [k.machine for k in gather(tmp_path / "m" / "a.json", ["m"], tmp_path)] == [THIS_RUN]
    (tmp_path / "m" / "b.json").write_text('{"format": "crucible-evidence", "version": 1, ')
    with pytest.raises(InputError, match=r"b\.json"):
        gather(None, ["m"], tmp_path)


def test_the_kernel_table_has_the_25_shapes_with_what_ran_and_how_much_longer_the_others_take():
    found = speeds.shapes_table(gather(None, ["outputs/h200"]))
    assert len(found.rows) == 25 and found.headings[4] == "reference"
    assert all(r[1] and float(r[2]) > 0 and r[4].endswith("x") for r in found.rows)
    item = Record(
        *("bench.attention", "c", "x", "measured"),
        facts={"s: auto, runs": "fast-rows"},
        samples=(Series("s: auto", "us", (2.0, 4.0, 3.0)), Series("s: reference", "us", (30.0,))),
    )
    assert speeds.shapes_table(kept(item)).rows == (("s", "fast-rows", "3.0", "2.0 to 4.0", "10.0x", ""),)


def test_stages_replay_and_wall_stand_in_three_tables():
    names = ("stage attention", "stage empty interval", "synchronized replay", "host wall")
    series = tuple(Series(f"f32 4x256: {n}", "us", (float(i),)) for i, n in enumerate(names, 1))
    found = speeds.stage_tables(kept(Record("bench.stages", "c", "x", "measured", samples=series)))
    assert [[r[0] for r in one.rows] for one in found] == [
        ["attention", "empty interval"],
        *2 * [["f32 4x256"]],
    ]
    assert [one.rows[0][1] for one in found] == ["1.0", "3.0", "4.0"]


def test_service_evidence_appears_when_there_is_a_record_and_says_not_run_when_there_is_none():
    for kind, command in services.COMMANDS.items():
        [absent] = services.sections([], kind)
        assert absent.rows == (("not run", command),)
        item = Record(kind, "claim of it", "x", "pass")
        assert "claim of it" in services.sections(kept(item), kind)[0].markdown()


def test_no_two_metrics_of_the_service_share_a_table():
    facts = {
        "rounds": 3,
        "4x512, TTFT p50, change %": -40.0,
        "4x512, TTFT p50, every pair improved": True,
        "4x512, throughput, change %": 9.0,
        "envelope, round 1 auto, power, W": 300.0,
    }
    series = (
        Series("4x512, TTFT p50, reference", "ms", (3.0, 1.0, 2.0)),
        Series("4x512, TTFT p50, auto", "ms", (1.0,)),
        Series("4x512, throughput, auto", "tok/s", (80.0,)),
        Series("end to end", "ms", (5.0, 7.0)),
    )
    item = Record(services.AB, "c", "x", "measured", facts=facts, samples=series)
    head, ttft, rate, rest, machine = services.sections(kept(item), services.AB)
    assert ("rounds", 3) in head.rows and not [r for r in head.rows if "TTFT" in r[0] or "power" in r[0]]
    assert ttft.headings == ("TTFT p50 (ms)", "reference", "auto", "change %", "every pair improved")
    assert ttft.rows == (("4x512", "2 [1, 3]", "1 [1, 1]", -40.0, True),)
    assert rate.headings[0] == "throughput (tok/s)" and rate.rows == (("4x512", "80 [80, 80]", 9.0),)
    assert rest.headings[0] == "samples (ms)" and rest.rows == (("end to end", "6 [5, 7]", 2),)
    assert machine.rows == (("round 1 auto", 300.0),) and machine.headings[1] == "power, W"


def test_policies_are_rows_and_are_drawn_where_a_sweep_has_both_sides_of_the_trade_off():
    names = ("budget 1024, no cap", "budget 512, no cap")
    series = [
        Series(f"arrival-mixed, {metric}, {name}", "ms", (1.0, 2.0))
        for name in names
        for metric in (services.ARRIVAL, services.GAP)
    ]
    series.append(Series(f"8x512, {services.ARRIVAL}, {names[0]}", "ms", (9.0,)))
    facts = {f"{names[1]}, arrival-mixed, {services.GAP}, change %": -5.0}
    found = kept(Record(services.SWEEP, "c", "x", "pass", facts=facts, samples=tuple(series)))
    _, first, gap = services.sections(found, services.SWEEP)
    assert [r[0] for r in first.rows] == [*(f"{n}, arrival-mixed" for n in names), f"{names[0]}, 8x512"]
    assert gap.rows[1] == (f"{names[1]}, arrival-mixed", "1.5 [1, 2]", -5.0)
    assert set(services.trade_offs(found)) == {f"{n}, arrival-mixed" for n in names}
    assert png(results.trade_offs(services.trade_offs(found)))


def test_drift_rates_stand_by_candidate_and_sampler():
    facts = {"sequences": 7, "tokens": 70, "flip mass a token, gumbel-id": "1e-05"}
    item = replace(GATE, kind="drift: split-sum, gumbel-id", verdict="measured", facts=facts)
    [found] = drift_rates.rates_table(kept(item)).rows
    assert found[1:5] == ("split-sum", "gumbel-id", 7, 70) and found[-1] == "1e-05"
    masses = {"flip mass a token, tf32, inverse-cdf": 0.5, "flip mass a token, tf32, gumbel-id": 0.25}
    mine = replace(GATE, kind="drift-diagnosis", facts=masses)
    assert drift_rates.masses_table(kept(mine)).rows == (("tf32", 0.5, 0.25),)


def test_an_empty_table_names_the_command_that_fills_it():
    assert or_not_run(table(("a", "b"), []), "crucible x").rows == (("not run", "crucible x"),)
