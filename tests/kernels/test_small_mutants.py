"""Negative controls of the small kernels: a wrong order, rounding, tie or noise must be seen."""

import numpy as np
import pytest

from crucible.gates import vectors
from crucible.gates.sections import SECTIONS
from crucible.numerics.bits import compare
from crucible.ops.embedding import StoredTable, embed
from crucible.ops.norm import rmsnorm

from .conftest import VECTORS
from .test_mutants import mutant
from .test_small_ops import CPU, F, made, rope_case, run_rope_store, stored_rows

# name -> (file, [(text, replacement)], vector file, section)
MUTANTS = {
    "norm that multiplies by w before r": (
        "rmsnorm.cu",
        [("__fmul_rn(__fmul_rn(kept[i], r), weight[i])", "__fmul_rn(kept[i], __fmul_rn(r, weight[i]))")],
        *("rmsnorm", "rmsnorm"),
    ),
    "gate multiplied by the product of sigmoid and up": (
        "swiglu.cu",
        [
            (
                "__fmul_rn(__fmul_rn(g, contract_sigmoid(g)), u)",
                "__fmul_rn(g, __fmul_rn(contract_sigmoid(g), u))",
            )
        ],
        *("swiglu", "swiglu"),
    ),
    "running sum in f32": (
        "serial_sum.cuh",
        [
            (
                "c = __dadd_rn(c, static_cast<double>(__shfl_sync(kAllLanes, mine, j)))",
                "c = __fadd_rn(static_cast<float>(c), __shfl_sync(kAllLanes, mine, j))",
            )
        ],
        *("sampling", "given u"),
    ),
    "ties by the higher id": (
        "sampling.cuh",
        [
            ("<< 32 | id;", "<< 32 | ~id;"),
            ("static_cast<int>(ranked & 0xffffffffu)", "static_cast<int>(~ranked)"),
        ],
        *("sampling", "greedy and ranks"),
    ),
    "-0 below +0": (
        "sampling.cuh",
        [("__float_as_uint(__fadd_rn(z, 0.0f))", "__float_as_uint(z)")],
        *("sampling", "greedy and ranks"),
    ),
    "noise by rank": (
        "sample_rows.cu",
        [("v = noise(seed, draw, token)", "v = noise(seed, draw, i)")],
        *("gumbel", "gumbel-id"),
    ),
    "top_p cut before the rank that reaches it": (
        "sample_rows.cu",
        [("s.found, s.sum) + 1;", "s.found, s.sum) + (s.found == 0);")],
        *("sampling", "seeded"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_kernel_is_caught_by_the_vectors(device, tmp_path, name):
    file, edits, vector, section = MUTANTS[name]
    broken, held = mutant(device, tmp_path, file, edits), vectors.read(VECTORS / f"{vector}.npz")
    checks = list(SECTIONS[vector][section](broken, held))
    assert sum(compare(c.expected, c.actual).differing for c in checks)


def test_squares_rounded_before_their_sum_are_caught(device, tmp_path):
    edits = [("a = __fmaf_rn(kept[i], kept[i], a)", "a = __fadd_rn(__fmul_rn(kept[i], kept[i]), a)")]
    broken = mutant(device, tmp_path, "norm.cuh", edits)
    x, w = made(30, 20, 2048), made(31, 2048)
    wrong = device.download(rmsnorm(broken, device.upload(x), device.upload(w), F(1e-5)))
    assert compare(rmsnorm(CPU, x, w, F(1e-5)), wrong).differing


def test_nibbles_in_the_wrong_order_are_caught(device, tmp_path):
    broken = mutant(device, tmp_path, "embed.cu", [("q = k < 16 ?", "q = k % 2 == 0 ?")])
    rows, ids = stored_rows("q4_1", 19, 576), np.arange(19, dtype=np.int32)
    expected = embed(CPU, StoredTable("q4_1", rows, 576), ids)
    wrong = device.download(embed(broken, StoredTable("q4_1", device.upload(rows), 576), device.upload(ids)))
    assert compare(expected, wrong).differing


def test_another_angle_page_or_order_of_the_head_norm_is_caught(device, tmp_path):
    case = rope_case(2, 1, 96)
    expected = run_rope_store(CPU, case, 2, 1, 96, norms=True)
    for i, edit in enumerate(
        (
            ("float low = x[i], high = x[half + i];", "float low = x[i], high = -x[half + i];"),
            ("s.absolute_start + (row - s.packed_start)", "s.absolute_start + (row - s.packed_start) - 1"),
            ("if (lane == v) joined = w;", "joined = __fadd_rn(joined, lane == 0 ? w : 0.0f);"),
        )
    ):
        folder = tmp_path / str(i)
        folder.mkdir()
        wrong = run_rope_store(mutant(device, folder, "rope_store.cu", [edit]), case, 2, 1, 96, norms=True)
        assert any(compare(a, b).differing for a, b in zip(expected, wrong, strict=True)), edit


def test_unchanged_copies_are_not_caught(device, tmp_path):
    same = mutant(device, tmp_path, "contract.cuh", [])
    held = vectors.read(VECTORS / "gumbel.npz")
    assert not sum(
        compare(c.expected, c.actual).differing for c in SECTIONS["gumbel"]["gumbel-id"](same, held)
    )
