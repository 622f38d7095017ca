"""The tensor gate: its counts, what its cases hold, that it sees what is wrong and keeps what is done."""

import json

import numpy as np
import pytest

from crucible.attention import native
from crucible.attention.run import VARIANTS, Variant
from crucible.device import get
from crucible.evidence import record
from crucible.gates import mutants, tensor, tensor_cases, tensor_inputs
from crucible.gates.tensor import TensorGate
from crucible.gates.tensor_cases import CONTENTS, Geometry, Plan
from crucible.gates.tensor_record import records, summary
from crucible.gates.tensor_tally import Tally, measure
from crucible.kv.slices import Slice
from crucible.kv.validation import validate

SEED = 20260908


def small_gate(device_name="cpu", variants=("exact", "online-k32")) -> TensorGate:
    """A gate of four cases over few variants."""
    gate = TensorGate(get(device_name), quick=True)
    gate.variants = [n for n in gate.variants if n in variants]
    base = gate.sections[2][1][:1]
    kept = (gate.plans[1:3], gate.geometries[:1], base, base)
    gate.sections = tuple(
        (name, plans, step) for (name, _, step), plans in zip(gate.sections, kept, strict=True)
    )
    return gate


def test_the_whole_gate_makes_the_comparisons_that_it_states():
    cases = tensor_cases.fixed(SEED) + tensor_cases.fuzz(SEED)
    exact, online = tensor.gated("cuda")
    seed = [n for n in exact + online if n in tensor.tiles_of_seed()]
    assert (len(tensor_cases.fixed(SEED)), len(cases), len(seed)) == (53, 53 + 128, 48)
    assert len(cases) * len(seed) == 8688
    bases = tensor_cases.several(cases[::-1], tensor.INVARIANCE)
    assert len(bases) * len(tensor.CHANGES) * len(seed) == 6000
    assert tensor.POISON * len(tensor_inputs.POISONS) * len(seed) == 960
    assert len(tensor_cases.random_geometry(SEED)) == 128


def test_random_geometry_draws_every_group_size_and_head_dim():
    drawn = [p.geometry for p in tensor_cases.random_geometry(SEED)]
    assert {g.G for g in drawn} == set(range(1, 9)) and {g.D for g in drawn} == {64, 128}
    assert len({g.spare for g in drawn}) > 4
    quick = {(p.geometry.G, p.geometry.D) for p in tensor_cases.quick(SEED)[1]}
    assert quick == {(G, D) for G in range(1, 9) for D in (64, 128)}


def test_the_quick_part_runs_every_variant_and_every_geometry():
    gate = TensorGate(get("simt"), quick=True)
    ran = {plan: gate._names(plan) for plan in gate.plans + gate.geometries}
    assert all(ran[plan] == gate.variants for plan in gate.plans)
    for name in gate.exact:
        dims = {p.geometry.D for p in gate.geometries if name in ran[p]}
        groups = {p.geometry.G for p in gate.geometries if name in ran[p]}
        assert dims == {64, 128} or name in tensor.tiles_of_seed(), name
        assert len(groups) >= 5, name
    assert {len(set(ran[p]) & set(tensor.QUICK_TURNS)) for p in gate.geometries} == {1}
    whole = TensorGate(get("simt"))
    assert all(whole._names(p) == whole.variants for p in whole.geometries)


def test_fuzz_covers_every_content_and_layout_and_is_a_function_of_the_seed():
    plans = tensor_cases.fuzz(SEED)
    assert {p.content for p in plans} == set(CONTENTS)
    assert {p.adjacent for p in plans} == {False, True}
    assert plans == tensor_cases.fuzz(SEED) and plans != tensor_cases.fuzz(SEED + 1)
    assert max(s.start + s.length for p in plans for s in p.slices) <= tensor_cases.CONTEXT


@pytest.mark.parametrize("plan", tensor_cases.quick(SEED)[0][::5] + tensor_cases.quick(SEED)[1][::4])
def test_a_case_is_well_formed_with_nan_wherever_no_row_may_look(plan):
    case = tensor_inputs.make(plan)
    pages = len(case.kpool)
    validate(case.desc, case.tables, num_pages=pages, rows=len(case.q), capacity=1024, writes=False)
    seen = tensor_inputs.visible(case)
    for pool in (case.kpool, case.vpool):
        assert np.isfinite(pool[:, tensor_inputs.LAYER][seen]).all()
        assert np.isnan(pool[:, tensor_inputs.LAYER][~seen]).all()
        assert np.isnan(pool[:, [0, 2]]).all()
    assert np.isfinite(case.k).all() and np.isfinite(case.q).all()


@pytest.mark.parametrize("kind", tensor_inputs.POISONS)
def test_poison_is_planted_where_its_name_says(kind):
    plan = tensor_cases.several(tensor_cases.quick(SEED)[0], 1)[0]
    harmless = tensor_inputs.harmless(tensor_inputs.make(plan))
    assert np.isfinite(harmless.kpool).all()
    poisoned, keep = tensor_inputs.poisoned(harmless, kind)
    nan = np.isnan(poisoned.kpool).any(axis=3)
    seen = tensor_inputs.visible(harmless) & nan[:, tensor_inputs.LAYER]
    assert nan.any() and seen.sum() == (kind == "later") and keep.all() == (kind != "later")


def test_neighbours_own_alternating_pages_when_adjacent():
    tables = tensor_inputs.make(Plan("a", (Slice(0, 0, 33), Slice(1, 0, 33)), 1, adjacent=True)).tables
    assert tables[:2, :3].tolist() == [[1, 3, 5], [2, 4, 6]]


def test_the_gate_passes_on_the_cpu_and_its_record_says_so(tmp_path):
    gate = small_gate()
    names = list(gate.steps())
    assert len(names) == gate.total == 5 and gate.passed and not gate.failures
    made = records(gate)
    path = record.save(tmp_path / "tensor.json", made)
    assert [r.verdict for r in record.load(path)] == ["pass"] * len(made) == ["pass"] * 5
    exact = next(r for r in made if r.kind == "tensor gate: exact")
    assert exact.differing == 0 and exact.nonzero and exact.facts["comparisons"] == 3
    online = next(r for r in made if r.kind == "tensor gate: online")
    assert online.facts["differing elements"] > 0 and online.differing == 0
    assert any("online" in line for line in summary(gate))


def test_an_interrupted_gate_keeps_its_counts_and_claims_nothing():
    gate = small_gate()
    next(steps := gate.steps())
    steps.close()
    assert not gate.passed and gate.tallies["cases", "exact"].comparisons == 1
    assert {r.verdict for r in records(gate)} == {"measured"}


def _wrong(change):
    right = native.native("crucible_attention_tiled")

    def launch(device, problem):
        right(device, problem)
        change(problem.out)

    return Variant("wrong", True, {"cpu": launch})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda out: out.__setitem__((0, 0, 0), np.nextafter(out[0, 0, 0], np.float32(9))), "1 differing"),
        (lambda out: out.fill(0), "0 non-zero"),
        (lambda out: out[0].fill(np.nan), "not finite"),
    ],
)
def test_one_wrong_bit_zeros_and_unwritten_rows_are_seen(monkeypatch, change, says):
    monkeypatch.setitem(VARIANTS, "exact", _wrong(change))
    gate = small_gate(variants=("exact",))
    list(gate.steps())
    assert not gate.passed and any(says in text for text in gate.failures)
    exact = next(r for r in records(gate) if r.kind == "tensor gate: exact")
    assert exact.verdict == "fail"


def test_a_nan_never_passes_and_the_worst_errors_are_kept():
    nan = np.full(4, np.nan, np.float32)
    assert measure(nan, nan).bad and measure(nan, nan, tolerant=True).bad
    a, b = np.float32([1, 2, 0.5]), np.float32([1, 2, 0.5 + 2**-24])
    found, total = measure(a, b, tolerant=True), Tally()
    total.add(found)
    total.add(measure(a, a))
    assert (found.bad, found.differing, found.halves, total.comparisons) == (0, 1, 0, 2)
    assert total.max_absolute == 2**-24
    assert measure(a, a + np.float32(1e-3), tolerant=True).outside == 3


@pytest.mark.parametrize("change", tensor.CHANGES)
def test_a_change_of_layout_keeps_every_visible_value(change):
    case = tensor_inputs.make(tensor_cases.several(tensor_cases.quick(SEED)[0], 1)[0])
    changed, rows = tensor._changed(case, change)
    assert np.array_equal(case.q[rows], changed.q) and np.array_equal(case.positions[rows], changed.positions)
    again = tensor_inputs.with_rows(changed)
    assert np.array_equal(again.k, case.k[rows]) and np.array_equal(again.v, case.v[rows])


def test_simt_covers_a_case_of_every_section():
    gate = small_gate("simt", ("exact-q4-k64", "exact-q1-k16-hybrid-cache", "online-q2-k32-hybrid-cache"))
    list(gate.steps())
    assert gate.passed and not gate.uncovered
    assert {"cpu device", "float64 oracle"} <= {section for section, _ in gate.tallies}


def test_the_record_lists_what_catches_each_mutant():
    first, *_, last = mutants.MUTANTS
    caught = [mutants.Caught(first, ("finite count",), ""), mutants.Caught(last, (), "")]
    made = records(small_gate(), caught)[-1]
    assert made.verdict == "fail" and made.facts == {first: "finite count", last: "not caught"}
    assert made.compared.startswith("2 mutants of 2 exact variants")
    assert json.loads(record.to_json([made]))


def test_geometry_names_itself():
    assert str(Geometry(3, 2, 128)) == "G3 Hkv2 D128"


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_subnormal_counts_as_non_zero(name):
    tiny = np.full(3, 1e-40, np.float32)
    device = get(name)
    found = measure(device.upload(tiny), device.upload(-tiny))
    assert (found.nonzero, found.finite, found.differing) == (3, 3, 3)


@pytest.mark.gpu
def test_the_quick_part_passes_on_the_gpu():
    gate = TensorGate(get("cuda"), quick=True)
    gate.compile()
    list(gate.steps())
    assert gate.passed, gate.failures
