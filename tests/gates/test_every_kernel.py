"""What the sanitizers watch: every form of the attention kernels, counted by kernel, and their record."""

import itertools
import json

import numpy as np
import pytest

from crucible import device as devices
from crucible.attention import dispatch, fast
from crucible.attention.plan import plan_of
from crucible.attention.run import run
from crucible.attention.shapes import LAYER, case
from crucible.device.counted import Counted
from crucible.device.dry import Dry
from crucible.errors import UnsupportedError
from crucible.gates import every_attention_kernel, mutants, sanitizers
from crucible.gates.every_attention_kernel import FORMS, SHAPES, Shape, attention_launches, attention_sources
from crucible.gates.every_kernel import entries
from crucible.gates.every_small_kernel import block_launches
from crucible.gates.sanitizers import Checked

GEOMETRIES = tuple(itertools.product((3, 4, 8), (64, 128)))
STARTS, CHUNKS = (0, 60, 130, 1200), (1, 2, 3, 4, 5, 8, 10, 11, 17, 33)


def forms(sources) -> set[tuple]:
    return {(stem, tuple(sorted(defines.items()))) for stem, defines in sources}


def auto_may_run(G: int, D: int) -> set[tuple]:
    """The forms of every variant that auto names or ends with, over many histories and chunks."""
    dry = Dry(devices.get("simt"))
    names = {name for point in dispatch.load().points for name in point.us} | set(dispatch.LAST)
    for start, length in itertools.product(STARTS, CHUNKS):
        c = case(((start, length),), 2 * G, 2, D)
        arrays = (c.q, c.kpool, c.vpool, c.tables, c.packed.desc, LAYER, 2, D)
        plan = plan_of(dry, c.packed.desc, 2)
        for name in names:
            try:
                run(dry, *arrays, variant=name, plan=plan)
            except UnsupportedError:
                continue
    return forms(dry.sources)


def test_every_form_that_auto_may_choose_is_launched():
    launched = forms(attention_sources())
    for G, D in GEOMETRIES:
        possible = auto_may_run(G, D)
        assert len(possible) >= 20 and possible <= launched, sorted(possible - launched)


def test_every_form_that_the_fast_tier_compiles_ahead_is_launched():
    launched = forms(attention_sources())
    for G, D in GEOMETRIES:
        ahead = [s for s in fast.sources(G, D) if s[0] != "attention_fast_decode" or s[1]["DISTS"] <= 16]
        # Of the counts of distributions, scores has those of fast-decode and of fast-split.
        split = {r * G for r in (1, 2, 4, 32 // G)}
        needed = [s for s in ahead if s[1].get("DISTS", G) in split or s[0].endswith(("scores", "decode"))]
        assert forms(needed) <= launched


def test_fast_rows_is_launched_in_both_capacities_at_every_geometry():
    rows = {
        (d["GROUP"], d["HEAD_DIM"], d["CAPACITY"])
        for stem, d in attention_sources()
        if stem == "attention_fast_rows"
    }
    assert rows == {(G, D, capacity) for G, D in GEOMETRIES for capacity in (64, 128)}


def test_the_forms_are_few_enough_for_minutes_under_a_sanitizer():
    dry = Dry(devices.get("simt"))
    shapes = [(s, case(s.segments, s.G * 2, 2, s.D)) for s in (*SHAPES, *FORMS)]
    assert sum(1 for s, c in shapes for _ in every_attention_kernel._runs(dry, s, c)) < 400


def test_a_form_has_the_references_bits_on_simt_and_a_mutant_of_it_has_not(tmp_path):
    simt, name = devices.get("simt"), "one key too few"
    shape = Shape(4, 64, ((0, 5), (20, 2)), ("reference", "exact-q4-k64", "fast-rows"))
    ran = list(attention_launches(simt, (shape,)))
    assert ran == ["reference G=4 D=64", "exact-q4-k64 G=4 D=64", "fast-rows G=4 D=64"]
    m = mutants.MUTANTS[name]
    wrong = mutants.mutate(simt, tmp_path / "kernels", m.file, m.text, m.replacement)
    with pytest.raises(AssertionError, match="exact-q4-k64"):
        list(attention_launches(wrong, (shape,)))


def test_launches_are_counted_by_kernel_and_change_nothing():
    counted = Counted(devices.get("simt"))
    assert len(list(block_launches(counted))) > 10
    assert counted.launches["rmsnorm"] == 2 and set(counted.launches) < entries()
    x = np.float32([1, -0.0])
    assert counted.name == "simt" and counted.upload(x) is x


def test_the_kernels_of_every_file_are_known_by_name():
    known = entries()
    assert {"attention_fast_rows", "linear_i8_rows", "linear_i8_wgmma", "tree32_rows", "residual"} <= known


def output(summary: str, launches: dict[str, int]) -> str:
    return f"noise\n{json.dumps({'calls': 7, 'launches': launches})}\n========= {summary}\n"


LAUNCHES = dict.fromkeys(sorted(entries()), 3)


def test_the_record_names_the_kernels_and_their_launches():
    clean = [sanitizers.read(t, output("ERROR SUMMARY: 0 errors", LAUNCHES)) for t in sanitizers.TOOLS]
    made = sanitizers.to_record(clean, None)
    assert made.verdict == "pass" and made.facts["launches"] == 3 * len(LAUNCHES)
    assert made.facts["calls"] == 7 and made.facts["launches of attention_fast_rows"] == 3
    assert not any("not launched" in text for text in made.not_claimed)


def test_findings_other_launches_and_a_run_cut_short_fail(capsys):
    clean = sanitizers.read("memcheck", output("ERROR SUMMARY: 0 errors", LAUNCHES))
    hazards = output("RACECHECK SUMMARY: 2 hazards displayed", LAUNCHES)
    fewer = output("ERROR SUMMARY: 0 errors", {"rope": 1})
    for text in (hazards, fewer, "killed"):
        assert sanitizers.to_record([clean, sanitizers.read("racecheck", text)], None).verdict == "fail"
    assert sanitizers.read("racecheck", "killed").found == "did not run to its end"
    assert sanitizers.to_record([Checked("memcheck", "0")], None).verdict == "fail"
    assert "killed" in capsys.readouterr().err


def test_a_kernel_that_was_not_launched_is_named_in_the_record():
    some = {name: n for name, n in LAUNCHES.items() if name != "linear_i8_wgmma"}
    made = sanitizers.to_record([Checked("memcheck", "0", 7, some)], None)
    assert made.verdict == "pass" and "linear_i8_wgmma: not launched" in made.not_claimed
