"""The drift gate measures candidates and holds its controls."""

from dataclasses import replace

import pytest

from crucible import device
from crucible.attention.run import attention
from crucible.device.sources import kernels_dir
from crucible.drift.candidates import open_candidate
from crucible.drift.corpus import LENGTHS, Corpus
from crucible.drift.paths import Request
from crucible.drift.rate import SEVERITIES, Divergence, Rate, measure
from crucible.evidence.record import to_json
from crucible.gates.drift import DriftGate, records, summary
from crucible.gates.model_parts import load
from crucible.model import synthetic
from crucible.model.model import TINY, Model
from crucible.sampling.params import SamplingParams

from .conftest import CONFIG


def tiny_of(config, on: str = "cpu") -> Model:
    """A synthetic model of a shape."""
    return Model.from_checkpoint(synthetic.open_synthetic(config, 7, "tiny"), device.get(on))


def test_the_gate_measures_a_candidate_and_every_control_holds(tiny):
    gate = DriftGate(tiny, ["q2-k32", "tf32"], 4, steps=3)
    assert sum(done for _, done in gate.work()) == gate.total
    assert gate.passed, gate.controls
    made = records(gate)
    assert [r.verdict for r in made] == ["pass", "measured", "measured"] * 2 + ["pass"]
    assert all(r.differing for r in made if r.verdict == "measured")
    assert to_json(made) and len(summary(gate)) == 2 + 6 + len(gate.controls)


def test_an_exact_candidate_must_change_no_bit(tiny):
    gate = DriftGate(tiny, ["exact", "split-sum"], 2, steps=2)
    for _ in gate.work():
        pass
    assert gate.passed and gate.controls["exact candidates change no bit"]
    exact = next(r for r in gate.rates if r.candidate == "exact")
    assert exact.elements and exact.nonzero and not exact.differing
    exact.differing = 1
    assert "fail" in {r.verdict for r in records(gate) if "exact" in r.kind}


def test_a_users_kernel_with_the_references_bits_fails_no_control(tiny, tmp_path):
    path = tmp_path / "attention_reference.cu"
    path.write_text((kernels_dir() / path.name).read_text())
    gate = DriftGate(tiny, [str(path), "split-sum"], 2, steps=2)
    for _ in gate.work():
        pass
    assert gate.passed, gate.controls
    assert [bool(r.differing) for r in gate.rates] == [False, False, True] * 2


def test_candidates_that_read_the_slices_own_keys_get_them():
    model = tiny_of(replace(CONFIG, head_dim=64, heads=2, kv_heads=1), "simt")
    names = ["online-q2-k32", "online-q2-k32-hybrid", "online-q2-k32-hybrid-cache"]
    gate = DriftGate(model, names, 1, steps=2)
    next(gate.work())
    plain, hybrid, cached = (gate.tensors[name] for name in names)
    assert plain.differing and plain == hybrid == cached
    assert [r.steps for r in gate.rates] == [2] * 4


def test_a_fused_scale_shows_only_where_the_scale_is_no_power_of_two():
    silent, shown = (
        DriftGate(tiny_of(replace(CONFIG, head_dim=d)), ["contracted", "tf32"], 2, steps=2) for d in (64, 32)
    )
    for gate in (silent, shown):
        for _ in gate.work():
            pass
        assert gate.passed, gate.controls
    contracted = [[r.differing for r in g.rates if r.candidate == "contracted"] for g in (silent, shown)]
    assert not any(contracted[0]) and all(contracted[1])
    assert any("power of two" in name for name in silent.controls)
    assert not any("power of two" in name for name in shown.controls)


def test_the_first_seed_decides_every_request():
    first = Corpus(lambda number, length: (1,) * length).requests(3)
    again = Corpus(lambda number, length: (1,) * length, seed=2**64 - 1).requests(3)
    assert [r.sampling.seed for r in first] == [141025, 142002, 142979]
    assert [r.sampling.seed for r in again] == [2**64 - 1, 976, 1953]


def test_a_gate_that_did_not_finish_does_not_pass(tiny):
    gate = DriftGate(tiny, ["q2-k32"], 2, steps=2)
    next(gate.work())
    assert not gate.passed


def test_a_group_that_was_stopped_counts_for_no_candidate(tiny, corpus):
    calls = []

    def stops(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):
        calls.append(layer)
        if len(calls) > CONFIG.layers:  # the second group's first
            raise KeyboardInterrupt
        return attention(device, q, kpool, vpool, tables, desc, layer, Hkv, D, "reference")

    candidates = [open_candidate(spec, tiny.device) for spec in ("tf32", stops)]
    kept: list[Rate] = []
    with pytest.raises(KeyboardInterrupt):
        for _, kept in measure(tiny, corpus.requests(4), candidates, together=2):
            assert [len(rate.groups) for rate in kept] == [2, 2]
    assert [len(rate.groups) for rate in kept] == [2, 2]


def test_every_sequence_that_changes_is_kept_in_the_record(tiny):
    gate = DriftGate(tiny, ["defect-nan"], 51, steps=1)
    for _ in gate.work():
        if len(gate.rates) == 4:
            break
    made = next(r for r in records(gate) if "defect-nan" in r.kind)
    kept = [name for name in made.facts if name.startswith("divergent request")]
    assert made.facts["sequences that change"] == 51
    assert kept == [f"divergent request {number}" for number in range(51)]


def test_tensor_verdicts_see_more_than_one_tile_of_keys(tiny):
    gate = DriftGate(tiny, ["split-sum"], 1, steps=1)
    next(gate.work())
    rows = gate.tensors["split-sum"].elements // (CONFIG.layers * CONFIG.heads * CONFIG.head_dim)
    assert rows == max(LENGTHS) > 64


def test_severities_are_told_apart():
    request = Request((1,), 9, SamplingParams())
    reference = (1, 2, 3, 4, 5, 6, 7)
    others = ((9,), (9, 2, 3, 4, 5, 6, 7), (9, 1, 2, 3, 4, 5, 6), (9, 8, 8, 8, 8, 8, 8))
    found = [Divergence(request, 0, reference[: len(x)], x).severity for x in others]
    assert tuple(found) == SEVERITIES


def test_processes_that_share_the_sequences_find_what_one_finds():
    model = load(TINY, device.get("cpu"), "f32")
    gates = [DriftGate(model, ["q2-k32"], 35, steps=2, jobs=jobs, spec=TINY) for jobs in (1, 2)]
    for gate in gates:
        for _ in gate.work():
            pass
    one, shared = gates
    assert shared.passed and one.rates == shared.rates
    assert [len(r.groups) for r in shared.rates] == [35] * 4 and any(r.differing for r in shared.rates)
