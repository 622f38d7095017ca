"""The whole attention benchmark: which rows it has, what it compiles ahead, what its record holds."""

import subprocess
import sys

import numpy as np
import pytest

from crucible import device
from crucible.attention.shapes import ALL, LAYER, SHAPES, case
from crucible.bench import attention_full as full
from crucible.bench.outcome import Contender, Outcome
from crucible.errors import InputError
from crucible.numerics.bits import assert_same_bits


def rows(kind: str) -> set:
    part = next(p for p in full.PARTS if p.kind == kind)
    return {(shape, heads) for _, shape, heads in full.titles(part)}


def test_the_rows_cover_groups_of_three_four_and_eight_at_both_head_dimensions():
    assert {(Hq // Hkv, D) for _, (Hq, Hkv, D) in rows("attention-geometry")} == {
        (G, D) for G in (3, 4, 8) for D in (64, 128)
    }
    assert {(s, Hq // Hkv) for s, (Hq, Hkv, _) in rows("attention-decode")} >= {
        (f"decode-{n}x1000", G) for n in (16, 64) for G in (3, 4)
    }
    assert {s for s, _ in rows("attention")} == set(SHAPES) and len(SHAPES) == 25


def test_the_ablation_has_every_tile_of_four_rows_and_names_no_row_twice():
    assert {
        f"exact-q4-k{k}{o}" for k in (16, 32, 64) for o in ("", "-hybrid", "-cache", "-hybrid-cache")
    } <= set(full.ABLATION)
    for part in full.PARTS:
        titles = [title for title, *_ in full.titles(part)]
        assert len(set(titles)) == len(titles)


def test_a_dry_device_names_the_kernels_without_compiling_them():
    part = full.Part("x", "", ("16x16",), (full.STANDARD,), ("exact-q4-k64", "exact-q1-k16-hybrid", "auto"))
    cases = {("16x16", full.STANDARD): case(ALL["16x16"])}
    named = full.sources(device.get("simt"), cases, [part])
    assert [stem for stem, _ in named][:3] == ["attention_reference", "attention_exact", "attention_exact"]
    assert named[2][1]["HYBRID"] == 1 and named[-1][0].startswith("attention_fast")


def test_a_launchs_own_rows_are_those_of_its_pages():
    c = case(((5, 3), (0, 18)))
    k, v = c.own()
    for row, (position, segment) in enumerate(zip(c.packed.positions, c.packed.row_segment, strict=True)):
        at = c.tables[segment, position // 16], LAYER, position % 16
        assert_same_bits(k[row], c.kpool[at])
        assert_same_bits(v[row], c.vpool[at])


def test_an_unknown_part_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="no part 'decode'; choose from attention, attention-geometry"):
        full.run(only=("decode",))


def outcome(title: str) -> Outcome:
    ours = {"issue share": 0.4, "runs": "fast-t32"}
    return Outcome(
        title,
        (
            Contender("reference", "f32", "us", (90.0, 80.0), True, {"issue share": 0.1}),
            Contender("auto", "f32", "us", (9.0, 8.0), True, ours),
            Contender("torch SDPA efficient", "f32", "us", (12.0, 16.0)),
        ),
        higher_is_better=False,
    )


def test_decode_says_how_often_keys_and_values_could_have_been_read():
    c = case(ALL["decode-1x1000"])
    assert c.kv_bytes == 1000 * 3 * 64 * 2 * 4
    counted = full.with_reads(outcome("x"), c, bandwidth=153.6)  # GB/s: one read takes 10 us
    assert counted.contenders[1].facts["K/V reads"] == pytest.approx(0.85)


def test_a_record_a_part_with_the_copy_bandwidth_and_every_sample():
    counted = full.with_reads(outcome("d at 9/3/64"), case(ALL["decode-1x1000"]), 100.0)
    found = full.Full(
        {"attention": [outcome("a"), outcome("b")], "attention-decode": [counted]}, (4000.0, 4200.0)
    )
    first, second = full.records(found)
    assert (first.kind, second.kind) == ("bench.attention", "bench.attention-decode")
    assert first.samples[0].values == (4000.0, 4200.0) and second.facts["copy bandwidth GB/s"] == 4100.0
    assert {s.name for s in first.samples[1:]} == {
        f"{shape}: {name}" for shape in "ab" for name in ("reference", "auto", "torch SDPA efficient")
    }
    assert any(np.isfinite(v) for name, v in second.facts.items() if name.endswith("auto, K/V reads"))
    shown = full.text(found)
    assert "40.0%" in shown and "K/V reads" in shown and "1.65x" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--full"], "error: --full measures a GPU; add --device cuda"),
        (["--device", "simt"], "error: attention is timed on cuda or cpu, not on 'simt'"),
    ],
)
def test_the_command_refuses_a_processor_for_what_needs_a_gpu(options, said):
    code = "from crucible.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", "attention", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.strip() == said
