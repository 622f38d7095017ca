"""Zeros of both signs in the tensor gate, and the mutants: what only they show, and that each is caught."""

from pathlib import Path

import numpy as np
import pytest

from crucible.device import get
from crucible.gates import mutants, tensor_cases, tensor_inputs
from crucible.gates.mutants import MUTANTS
from crucible.gates.tensor import TensorGate, on_cpu
from crucible.gates.tensor_cases import Geometry, Plan
from crucible.kv.slices import Slice
from crucible.numerics.contract import PAGE_SIZE

SEED = 20260908
NEGATIVE = np.uint32(1 << 31)  # the bits of -0
FROM_MINUS_ZERO = [name for name in MUTANTS if "from -0" in name]


def zeros_plans(most: int = 300_000) -> list[Plan]:
    """The `zeros` cases of the quick and the whole gate, those of at most so many scores."""
    quick, geometries = tensor_cases.quick(SEED)
    whole = tensor_cases.fixed(SEED) + tensor_cases.fuzz(SEED) + tensor_cases.random_geometry(SEED)
    return [p for p in quick + geometries + whole if p.content == "zeros" and p.scores <= most]


def values(case: tensor_inputs.Case, request: int) -> np.ndarray:
    """V of a request's positions, f32 [n][Hkv][D]."""
    ends = case.desc[case.desc[:, 3] == request][:, 1:3].sum(axis=1)
    at = np.arange(ends.max())
    v = case.vpool[case.tables[request, at // PAGE_SIZE], tensor_inputs.LAYER, at % PAGE_SIZE]
    return v.reshape(len(at), case.plan.geometry.Hkv, -1)


def outputs(case: tensor_inputs.Case) -> np.ndarray:
    """Bits of the exact output, uint32 [T][Hkv][G][D]."""
    geometry = case.plan.geometry
    return on_cpu(case).reshape(len(case.q), geometry.Hkv, geometry.G, geometry.D).view(np.uint32)


def test_every_zeros_case_has_values_that_are_minus_zero_throughout_and_come_out_as_plus_zero():
    for plan in zeros_plans():
        case, at = tensor_inputs.make(plan), 0
        bits = outputs(case)
        for length, request in case.desc[:, [1, 3]].tolist():
            rows, at = bits[at : at + length], at + length
            minus = (values(case, request).view(np.uint32) == NEGATIVE).all(axis=0)
            assert minus.any(axis=0).sum() == minus.shape[1] // 2 or minus.any(axis=1).all(), plan
            seen = rows.transpose(0, 2, 1, 3)[:, :, minus]
            assert seen.size and not seen.any(), plan
        if plan.geometry.Hkv > 1:
            assert (values(case, 0)[:, 0].view(np.uint32) == NEGATIVE).all(), plan


def test_every_row_of_a_zeros_case_has_an_output_that_is_not_zero():
    for plan in zeros_plans():
        assert (outputs(tensor_inputs.make(plan)) & ~NEGATIVE).any(axis=(1, 2, 3)).all(), plan


def test_scores_of_both_zeros_and_weights_that_vanish_decide_signs():
    case = tensor_inputs.make(Plan("a", (Slice(0, 0, 4), Slice(1, 0, 4)), 1, Geometry(2, 2, 64), "zeros"))
    k = case.kpool[case.tables[0, 0], tensor_inputs.LAYER, :4]
    assert not (k.view(np.uint32) & ~NEGATIVE).any() and len(np.unique(k.view(np.uint32))) == 2
    assert (case.q[:, ::2] >= 0).all() and (case.q[:, 1::2] <= 0).all()
    # Of request 1, KV head 1, query head 0: the second row ends at -0, later weights of +0 make it +0.
    rows = outputs(case)[4:, 1, 0, 0::4]
    assert (rows[1] == NEGATIVE).all() and not rows[2:].any()


def test_every_mutant_is_caught_and_each_check_is_needed():
    found = {m.mutant: m.checks for m in mutants.caught()}
    assert set(found) == set(MUTANTS) and all(found.values()), found
    assert "future poison" in found["one key too many"]
    assert "finite count" in found["output left unwritten"]
    assert "non-zero count" in found["zeros returned"]
    for name in (*FROM_MINUS_ZERO, "keys of weight +0 left out"):
        assert found[name] == ("zeros against the reference",), name


def test_the_mutants_are_of_a_plain_tile_a_tile_with_options_and_every_way_of_summing_values():
    assert len(MUTANTS) == 18
    assert {m.variant for m in MUTANTS.values()} == {
        *("exact-q4-k64", "exact-q2-k32-hybrid-cache"),
        *("fast-t32", "fast-rows", "fast-decode", "fast-split"),
    }
    assert {MUTANTS[name].file for name in FROM_MINUS_ZERO} == {
        *("attention_exact.cu", "attention_fast_chain.cuh", "attention_fast_rows.cu"),
        *("attention_fast_decode.cu", "attention_fast_values.cu"),
    }


@pytest.mark.parametrize("name", FROM_MINUS_ZERO)
def test_the_quick_gate_sees_values_summed_from_minus_zero(name, tmp_path):
    mutant, simt = MUTANTS[name], get("simt")
    device = mutants.mutate(simt, Path(tmp_path, "kernels"), mutant.file, mutant.text, mutant.replacement)
    gate = TensorGate(device, quick=True)
    gate.variants = [mutant.variant]
    plan = next(p for p in gate.plans if p.content == "zeros")
    gate._compare("cases", plan)
    assert gate.tallies["cases", mutant.variant].differing and len(gate.failures) == 1


def test_a_reference_that_sums_from_minus_zero_is_seen_by_the_cpu(tmp_path):
    changed = ("attention_reference.cu", "float acc = 0.0f;", "float acc = -0.0f;")
    gate = TensorGate(mutants.mutate(get("simt"), tmp_path / "kernels", *changed), quick=True)
    gate.variants = []
    gate._compare("cases", next(p for p in gate.plans if p.content == "zeros"))
    assert gate.tallies["cpu device", "reference"].differing and len(gate.failures) == 1
