"""The engine gate: its plan, parts of it on a tiny model and on SmolLM2, and wrong engines it must catch."""

import pytest

from crucible.errors import InputError
from crucible.evidence.record import load, save
from crucible.gates import engine_record as record
from crucible.gates.engine import EngineGate
from crucible.gates.engine_controls import CONTROLS, controls
from crucible.gates.engine_workloads import EDGES, RUNS, SEQUENCES, small, workloads
from crucible.model.fetch import fetch
from crucible.model.model import Model

SEED = 20260908


@pytest.fixture(scope="module")
def tiny() -> Model:
    return record.tiny_model()


@pytest.fixture(scope="module")
def plan(tiny):
    return workloads(tiny.config, SEED)


def test_the_plan_has_the_runs_and_sequences_that_it_claims(tiny, plan):
    assert len(plan) == RUNS and sum(len(w.requests) for w in plan) == SEQUENCES
    assert plan == workloads(tiny.config, SEED) != workloads(tiny.config, SEED + 1)
    lengths = {len(q.prompt) for w in plan if w.kind == "lengths" for q in w.requests}
    assert lengths >= set(EDGES)
    edge = [q for w in plan if w.kind == "lengths" for q in w.requests if len(q.prompt) > 512]
    assert edge and all(len(q.prompt) + q.max_tokens == tiny.config.context for q in edge)
    settings = {(w.limits.prefill_budget, w.limits.chunk_cap) for w in plan if w.kind == "lengths"}
    assert len(settings) == 12


def test_a_part_of_the_gate_on_a_tiny_model_finds_nothing_and_makes_everything_happen(tiny, plan, tmp_path):
    part = [w for w in plan if w.kind in ("prefix", "pressure", "burst")] + plan[-FUZZ_PART:] + [plan[4]]
    gate = EngineGate(tiny, part)
    names = list(gate.steps())
    assert names == [w.name for w in part] and gate.passed, record.summary(gate)
    assert gate.total.differing == 0 and gate.total.compared > 3500
    (made,) = record.records([gate], seed=SEED)
    assert made.verdict == "pass" and made.facts["preemptions"] > 0
    assert load(save(tmp_path / "engine.json", [made]))[0].samples == made.samples


FUZZ_PART = 8


def test_every_wrong_engine_is_caught(tiny, plan):
    found = list(controls(tiny, plan))
    assert [c.name for c in found] == list(CONTROLS)
    assert all(c.fault for c in found), [c.name for c in found if not c.fault]
    assert "pages were lost" in found[0].fault
    (made,) = [r for r in record.records([EngineGate(tiny, plan)], found) if "controls" in r.kind]
    assert made.verdict == "pass"


def test_a_gate_that_brought_nothing_about_does_not_pass(tiny, plan):
    gate = EngineGate(tiny, plan[:1])
    assert not gate.passed  # nothing ran
    list(gate.steps())
    assert gate.passed
    whole = EngineGate(tiny, [w for w in plan if w.name in ("fuzz 0", "prefix hits in mid-chunk")])
    whole.workloads = [*whole.workloads, plan[17]]
    list(whole.steps())
    whole.counters["preemptions"] = 0
    assert whole.idle[:1] == ["preemptions"] and not whole.passed


def test_smollm2_int8_serves_requests_together_as_alone():
    fetch("smollm2")
    model = Model.load("smollm2", mode="int8")
    part = [w for w in small(workloads(model.config, SEED), 300) if w.kind == "fuzz"][:3]
    gate = EngineGate(model, part)
    list(gate.steps())
    assert gate.passed and gate.total.sequences == 12, record.summary(gate)


def test_the_picture_of_a_timeline_is_drawn_from_the_record(tiny, plan, tmp_path):
    from crucible.report.timeline import draw

    gate = EngineGate(tiny, [w for w in plan if w.kind == "pressure"])
    list(gate.steps())
    (made,) = record.records([gate])
    assert draw(made, tmp_path / "out" / "timeline.svg").read_text().startswith("<?xml")
    bare = EngineGate(tiny, plan[:1])
    list(bare.steps())
    with pytest.raises(InputError, match="no step timeline"):
        draw(record.records([bare])[0], tmp_path / "none.svg")
