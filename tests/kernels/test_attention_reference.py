"""attention_reference.cu gives the contract's bits for every geometry, page order and packing."""

import numpy as np
import pytest

from crucible.attention.run import STATIC_SHARED, VARIANTS, attention
from crucible.device import get
from crucible.errors import InputError, NoKernelError, UnsupportedError
from crucible.numerics import scalar
from crucible.numerics.bits import assert_same_bits

from .conftest import AttentionCase, case_names, load_case


def made_case(G, D, Hkv, lengths, chunks, seed=5, stride=6) -> AttentionCase:
    """Requests with NaN in every slot that their last row must not see; chunk i is the end of request i."""
    rng = np.random.default_rng([seed, G, D])
    pages = stride * len(lengths) + 3
    kpool = np.full((pages, 2, 16, Hkv * D), np.nan, np.float32)
    vpool = np.full_like(kpool, np.nan)
    order, tables = iter(rng.permutation(pages)), np.full((len(lengths), stride), pages - 1, np.int32)
    desc, row = [], 0
    for request, (length, chunk) in enumerate(zip(lengths, chunks, strict=True)):
        tables[request] = [next(order) for _ in range(stride)]
        for position in range(length):
            page = tables[request, position >> 4]
            kpool[page, 1, position & 15] = rng.standard_normal(Hkv * D)
            vpool[page, 1, position & 15] = rng.standard_normal(Hkv * D)
        desc.append((row, chunk, length - chunk, request))
        row += chunk
    q = rng.standard_normal((row, G * Hkv, D)).astype(np.float32)
    return AttentionCase("made", q, kpool, vpool, tables, np.array(desc, np.int32), 1, Hkv)


@pytest.mark.parametrize("name", case_names())
def test_every_vector_matches_bit_for_bit(device, name):
    case = load_case(name)
    assert_same_bits(case.out, case.run(device), name)


@pytest.mark.parametrize(
    ("G", "D", "Hkv"), [(1, 32, 1), (2, 96, 2), (3, 96, 1), (5, 160, 1), (7, 64, 1), (1, 288, 1)]
)
def test_any_group_and_any_multiple_of_32_matches_the_oracle(device, G, D, Hkv):
    case = made_case(G, D, Hkv, lengths=(35, 1, 18), chunks=(4, 1, 3))
    expected = scalar.attention(case.q, case.kpool, case.vpool, case.tables, case.desc, 1, Hkv)
    assert_same_bits(expected, case.run(device), f"G={G} D={D}")


def test_shuffled_pages_do_not_change_a_bit(device):
    case = load_case("g3_d64:chunks")
    order = np.random.default_rng(7).permutation(len(case.kpool))
    case.kpool, case.vpool = case.kpool[order], case.vpool[order]
    case.tables = np.argsort(order)[case.tables].astype(np.int32)
    assert_same_bits(case.out, case.run(device))


def test_packing_order_and_neighbours_do_not_change_a_bit(device):
    case = load_case("g3_d64:chunks")
    for segment in (case.desc[-1], case.desc[0]):
        start, length = int(segment[0]), int(segment[1])
        alone = AttentionCase(
            "alone",
            np.ascontiguousarray(case.q[start : start + length]),
            *(case.kpool, case.vpool, case.tables),
            np.array([[0, *segment[1:]]], np.int32),
            *(case.layer, case.Hkv),
        )
        assert_same_bits(case.out[start : start + length], alone.run(device))
    reordered = AttentionCase(**{**vars(case), "desc": np.ascontiguousarray(case.desc[::-1])})
    assert_same_bits(case.out, reordered.run(device))


def test_a_chunk_gives_the_bits_of_its_rows_one_by_one(device):
    chunk = made_case(2, 64, 1, lengths=(40,), chunks=(40,))
    rows = AttentionCase(**{**vars(chunk), "desc": np.array([(i, 1, i, 0) for i in range(40)], np.int32)})
    assert_same_bits(rows.run(device), chunk.run(device))


def test_rows_without_a_segment_are_left_alone(device):
    case = load_case("g4_d64")
    padded = AttentionCase(**{**vars(case), "q": np.concatenate([case.q, case.q])})
    out = device.upload(np.full(padded.q.shape, 7, np.float32))
    result = padded.run(device, out=out)
    assert_same_bits(case.out, result[: len(case.q)])
    assert (result[len(case.q) :] == 7).all()


def test_a_larger_score_capacity_does_not_change_a_bit(device):
    case = load_case("g4_d64")
    assert_same_bits(case.out, case.run(device, capacity=4096))


def test_a_row_that_exceeds_the_given_capacity_is_nan_and_nothing_else_is(device):
    case = load_case("g4_d64")
    ends = case.desc[:, 1] + case.desc[:, 2]
    result = case.run(device, capacity=16)
    assert np.isnan(result[ends > 16]).all()
    assert_same_bits(case.out[ends <= 16], result[ends <= 16])


def test_flat_and_split_query_heads_are_the_same_call(device):
    case = load_case("g8_d64")
    flat = case.q.reshape(len(case.q), -1)
    arrays = [device.upload(a) for a in (flat, case.kpool, case.vpool, case.tables, case.desc)]
    result = device.download(attention(device, *arrays, case.layer, case.Hkv, 64))
    assert_same_bits(case.out.reshape(flat.shape), result)


@pytest.mark.parametrize("variant", [n for n, v in VARIANTS.items() if v.exact and "cpu" in v.launchers])
@pytest.mark.parametrize("name", ["g3_d64:chunks", "g1_d128", "subnormal_g3_d64"])
def test_the_cpu_variants_give_the_same_bits(variant, name):
    case = load_case(name)
    assert_same_bits(case.out, case.run(get("cpu"), variant=variant), name)


def test_a_history_that_does_not_fit_is_refused_with_the_limit():
    simt = get("simt")
    case = load_case("g4_d64")
    limit = (simt.shared_limit - STATIC_SHARED) // 4 - 64
    case.desc = np.array([(0, 1, limit, 0)], np.int32)
    case.tables = np.zeros((1, limit // 16 + 1), np.int32)
    with pytest.raises(UnsupportedError, match=f"history of {limit + 1} positions .* holds {limit} scores"):
        case.run(simt)


def test_the_declared_static_shared_memory_is_what_ptxas_reports():
    from crucible.device.nvrtc import ARCHITECTURES, compile_cubin

    for arch in ARCHITECTURES:
        used = compile_cubin("attention_reference", arch).resources["attention_reference"]
        assert used.static_shared == STATIC_SHARED


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"variant": "fast"}, InputError, "unknown attention variant 'fast'"),
        ({"variant": "hardware-exp"}, NoKernelError, "attention variant hardware-exp on device simt"),
        ({"D": 48}, InputError, "head_dim 48"),
        ({"Hkv": 3}, InputError, "4 query heads cannot share 3 KV heads"),
        ({"layer": 2}, InputError, "layer 2 is outside the pools' 2 layers"),
        ({"q": np.zeros((7, 200), np.float32)}, InputError, r"q has shape \(7, 200\)"),
        ({"q": np.zeros((7, 4, 64))}, InputError, "q has dtype float64"),
        ({"desc": np.zeros((1, 4), np.int64)}, InputError, "desc has dtype int64"),
        ({"kpool": np.zeros((3, 2, 8, 64), np.float32)}, InputError, "kpool has shape"),
    ],
)
def test_malformed_calls_are_refused_by_name(change, error, says):
    case = load_case("g4_d64")
    given = {**vars(case), "D": 64, "variant": "reference", **change}
    with pytest.raises(error, match=says):
        attention(
            get("simt"),
            *(given[k] for k in ("q", "kpool", "vpool", "tables", "desc", "layer", "Hkv", "D")),
            variant=given["variant"],
        )
