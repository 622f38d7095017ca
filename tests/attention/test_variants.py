"""Names of attention variants, what a device makes of them, and what happens where one does not fit."""

import numpy as np
import pytest

from crucible.attention import exact, online, variants
from crucible.attention.base import Launch
from crucible.attention.run import VARIANTS, run
from crucible.device import get
from crucible.errors import InputError, NoKernelError, UnsupportedError
from crucible.gates import tensor_inputs
from crucible.gates.tensor_cases import Geometry, Plan
from crucible.kv.slices import Slice
from crucible.numerics.bits import assert_same_bits

SLICES = (Slice(0, 3, 2), Slice(1, 0, 1))
GEOMETRY = Geometry(4, 1, 64)


def launch(device_name, variant, geometry=GEOMETRY, **options):
    device = get(device_name)
    positional, keyword = tensor_inputs.make(Plan("names", SLICES, 1, geometry)).on(device)
    return run(device, *positional, **{**keyword, "variant": variant, **options})


def test_the_registry_has_36_exact_tiles_and_12_online_diagnostics():
    assert len(exact.TILES) == len(set(map(str, exact.TILES))) == 36
    assert len(online.TILES) == len(set(map(str, online.TILES))) == 12
    assert all(VARIANTS[f"exact-{t}"].exact for t in exact.TILES)
    assert not any(VARIANTS[f"online-{t}"].exact for t in online.TILES)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("exact-q4-k46", "exact-q4-k64"),
        ("referense", "reference"),
        ("q2-k23", "q2-k32"),
        ("onlin", "online-k"),
        ("EXACT-Q4-K64", "exact-q4-k64"),
        ("Reference", "reference"),
    ],
)
def test_an_unknown_name_lists_the_near_ones(name, near):
    with pytest.raises(InputError, match=f"unknown attention variant '{name}'; did you mean .*{near}"):
        variants.find(name)


def test_a_long_name_is_repeated_in_part():
    for name in ("a" * 500, "exact\n" * 100, b"b" * 500):
        with pytest.raises(InputError) as found:
            variants.find(name)
        assert "\n" not in str(found.value) and len(str(found.value)) < 200
        assert "…" in str(found.value)


def test_the_short_spelling_of_an_online_diagnostic_is_the_same_variant():
    assert variants.find("q2-k32-hybrid") == "online-q2-k32-hybrid"


def test_the_environment_names_the_default_and_is_refused_by_its_own_name(monkeypatch):
    monkeypatch.delenv(variants.ENVIRONMENT, raising=False)
    assert variants.default() == "auto"
    monkeypatch.setenv(variants.ENVIRONMENT, "reference")
    assert launch("cpu", None).launch == Launch("reference", "reference")
    monkeypatch.setenv(variants.ENVIRONMENT, "exat")
    with pytest.raises(InputError, match=r"CRUCIBLE_PREFILL_ATTN 'exat'; did you mean .*exact"):
        variants.default()


@pytest.mark.parametrize(
    ("asked", "ran"),
    [("exact", "exact"), ("exact-q1-k16-cache", "exact"), ("q2-k32-hybrid", "online-k32"), ("auto", "exact")],
)
def test_the_cpu_runs_what_gives_the_same_bits_and_says_so(asked, ran):
    done = launch("cpu", asked).launch
    assert (done.variant, done.asked) == (ran, variants.find(asked))
    assert bool(done.reason) == (ran != variants.find(asked) and asked != "auto")


def test_the_alias_exact_is_the_standard_tile_on_devices_with_cuda_sources():
    assert variants.stand_in("simt", "exact") == ("exact-q4-k64", "")
    assert variants.stand_in("cuda", "online-k16") == ("online-q2-k16", "")


def test_a_demanded_variant_is_refused_where_it_does_not_cover_the_call():
    with pytest.raises(UnsupportedError, match="exact does not cover this call on simt: head_dim 96"):
        launch("simt", "exact", Geometry(4, 1, 96))
    with pytest.raises(UnsupportedError, match="4 rows of 9 heads need more than 32 warps"):
        launch("simt", "exact", Geometry(9, 1, 64))
    with pytest.raises(UnsupportedError, match="does not pass the packed rows' own K and V"):
        launch("simt", "exact-q1-k16-hybrid", k=None)
    with pytest.raises(UnsupportedError, match="4096 positions of history need 278528 bytes"):
        launch("simt", "exact", capacity=4000)
    with pytest.raises(NoKernelError, match="hardware-exp on device cpu"):
        launch("cpu", "hardware-exp")


@pytest.mark.parametrize(
    ("variant", "geometry", "options", "way_out"),
    [
        ("exact", Geometry(4, 1, 96), {}, "none of 64, 128; use auto or the cpu device"),
        (
            "exact-q1-k16",
            Geometry(33, 1, 64),
            {},
            "1 row of 33 heads needs .* use auto or the cpu device",
        ),
        ("fast-t32", Geometry(9, 1, 64), {}, "not 9 of 64; use auto or the cpu device"),
        ("exact", GEOMETRY, {"capacity": 4000}, "use auto, the cpu device or a shorter context"),
        ("reference", GEOMETRY, {"capacity": 60000}, "use auto, the cpu device or a shorter context"),
        ("auto", Geometry(9, 1, 64), {"capacity": 60000}, "scores; use the cpu device or a shorter context"),
    ],
)
def test_a_refusal_ends_with_a_way_out_that_helps(variant, geometry, options, way_out):
    with pytest.raises(UnsupportedError, match=f"{way_out}$"):
        launch("simt", variant, geometry, **options)


def test_the_way_out_helps():
    assert launch("cpu", "auto", Geometry(9, 1, 64), capacity=60000).launch.variant == "exact"
    assert launch("simt", "auto", Geometry(9, 1, 64)).launch.variant == "reference"
    assert launch("simt", "auto", GEOMETRY, capacity=60000).launch.variant.startswith("fast-")


def test_a_preferred_variant_that_nothing_can_stand_in_for_is_refused_with_a_way_out(monkeypatch):
    monkeypatch.setenv(variants.ENVIRONMENT, "exact")
    with pytest.raises(UnsupportedError, match=r"exact: .*; reference: .*; use the cpu device or a shorter"):
        launch("simt", None, Geometry(9, 1, 64), capacity=60000)


def test_a_preferred_variant_falls_back_to_the_reference_in_sight(monkeypatch, caplog):
    monkeypatch.setenv(variants.ENVIRONMENT, "exact-q4-k64")
    result = launch("simt", None, Geometry(4, 1, 96))
    assert result.launch.variant == "reference" and result.launch.asked == "exact-q4-k64"
    assert "head_dim 96" in result.launch.reason
    assert "falls back to the reference on simt" in caplog.text
    assert_same_bits(launch("cpu", "reference", Geometry(4, 1, 96)).out, result.out)


def test_auto_says_why_it_passed_over_its_first_choice():
    done = launch("simt", "auto", Geometry(4, 1, 96)).launch
    assert done.variant == "reference" and "exact-q4-k64: head_dim 96" in done.reason


def test_the_default_leaves_rows_without_a_segment_alone():
    device = get("cpu")
    positional, keyword = tensor_inputs.make(Plan("rows", SLICES, 1, Geometry(4, 1, 64))).on(device)
    out = np.full((5, 4, 64), 7, np.float32)
    q = np.concatenate([positional[0], positional[0][:2]])
    extents = {name: keyword[name] for name in ("capacity", "longest")}
    run(device, q, *positional[1:], variant=None, out=out, **extents)
    assert (out[3:] == 7).all() and not (out[:3] == 7).any()
