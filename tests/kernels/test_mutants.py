"""Negative controls: a kernel that breaks the contract on purpose must be caught by the vectors."""

import shutil

import numpy as np
import pytest

from crucible.device import get
from crucible.device.sources import kernels_dir
from crucible.numerics.bits import assert_same_bits, compare
from crucible.ops.rope import rope

from .conftest import VECTORS, load_case

FLUSH = """
__device__ __forceinline__ float flushed(float x) {
  return fabsf(x) < 1.17549435e-38f ? __int_as_float(__float_as_int(x) & 0x80000000u) : x;
}
extern "C" __global__"""

# name -> (file to change, [(text, replacement)], vector that must see it)
ATTENTION = {
    "contracted multiply-add in the softmax": (
        "attention_reference.cu",
        [
            ("scores[j] = __fmul_rn(c, scale)", "scores[j] = c"),
            ("fmaxf(m, scores[j])", "fmaxf(m, __fmul_rn(scores[j], scale))"),
            ("__fsub_rn(scores[j], m)", "__fmaf_rn(scores[j], scale, -m)"),
        ],
        "g3_d128",
    ),
    "multiply and add where the contract says fma": (
        "attention_reference.cu",
        [("c = __fmaf_rn(query[e], k[e], c)", "c = __fadd_rn(__fmul_rn(query[e], k[e]), c)")],
        "g3_d64",
    ),
    "flush to zero": (
        "attention_reference.cu",
        [
            ('extern "C" __global__', FLUSH),
            ("__fmul_rn(acc, inverse)", "flushed(__fmul_rn(acc, inverse))"),
        ],
        "subnormal_g3_d64",
    ),
    "reordered tree": (
        "contract.cuh",
        [("for (int o = 16; o > 0; o >>= 1) p =", "for (int o = 1; o < 32; o <<= 1) p =")],
        "g3_d64",
    ),
    "tree over 32 partial sums instead of 256": (
        "attention_reference.cu",
        [
            (
                "for (int j = t; j < L; j += 256) {",
                "for (int j = t; j < L; j += 32) {\n    if (t >= 32) break;",
            )
        ],
        "g3_d64",
    ),
    "split sum over the keys": (
        "attention_reference.cu",
        [
            ("float acc = 0.0f;", "float acc = 0.0f, odd = 0.0f;"),
            (
                "acc = __fmaf_rn(scores[j + i], v[i * kv_dim], acc);",
                "(i & 1 ? odd : acc) = __fmaf_rn(scores[j + i], v[i * kv_dim], i & 1 ? odd : acc);",
            ),
            ("__fmul_rn(acc, inverse)", "__fmul_rn(__fadd_rn(acc, odd), inverse)"),
        ],
        "g3_d64",
    ),
    "a key beyond the causal end": (
        "attention_reference.cu",
        [("(row - s.packed_start) + 1;", "(row - s.packed_start) + 2;")],
        "g3_d64",
    ),
    "division where the contract multiplies by the reciprocal": (
        "attention_reference.cu",
        [
            ("inverse = __fdiv_rn(1.0f, z)", "inverse = z"),
            ("__fmul_rn(acc, inverse)", "__fdiv_rn(acc, inverse)"),
        ],
        "g3_d64",
    ),
}


class Mutant:
    """A device whose kernels come from a folder of changed sources."""

    def __init__(self, device, folder):
        self._device, self._folder = device, folder

    def __getattr__(self, name):
        return getattr(self._device, name)

    def kernel(self, stem, entry=None, **defines):
        return self._device.kernel(self._folder / f"{stem}.cu", entry, **defines)


def mutant(device, folder, file, edits):
    for source in kernels_dir().glob("*.cu*"):
        shutil.copy(source, folder)
    text = (folder / file).read_text()
    for old, new in edits:
        assert old in text, f"{file} no longer holds {old!r}; adapt this control"
        text = text.replace(old, new)
    (folder / file).write_text(text)
    return Mutant(device, folder)


@pytest.mark.parametrize("name", ATTENTION)
def test_a_broken_attention_is_caught(device, tmp_path, name):
    file, edits, vector = ATTENTION[name]
    case = load_case(vector)
    wrong = case.run(mutant(device, tmp_path, file, edits), capacity=512)
    assert compare(case.out, wrong).differing
    with pytest.raises(AssertionError):
        assert_same_bits(case.out, wrong)


def test_an_unchanged_copy_is_not_caught(device, tmp_path):
    case = load_case("g3_d64")
    assert_same_bits(case.out, case.run(mutant(device, tmp_path, "contract.cuh", []), capacity=512))


def test_a_rope_without_its_fma_is_caught(device, tmp_path):
    edits = [("__fmaf_rn(low, s, __fmul_rn(high, c))", "__fadd_rn(__fmul_rn(low, s), __fmul_rn(high, c))")]
    broken = mutant(device, tmp_path, "rope.cu", edits)
    z = np.load(VECTORS / "rope.npz")
    rows = np.arange(6, dtype=np.int32)
    arrays = [device.upload(a) for a in (z["x_0"], rows, z["cos_0"], z["sin_0"])]
    assert compare(z["y_0"], device.download(rope(broken, *arrays, z["D_0"]))).differing


@pytest.mark.gpu
def test_flushing_by_compiler_flag_is_caught_on_the_gpu(tmp_path, monkeypatch):
    from crucible.device import nvrtc

    monkeypatch.setattr(nvrtc, "FLAGS", tuple(f.replace("--ftz=false", "--ftz=true") for f in nvrtc.FLAGS))
    cuda, case = get("cuda"), load_case("subnormal_g3_d64")
    wrong = case.run(mutant(cuda, tmp_path, "contract.cuh", []))
    assert compare(case.out, wrong).differing
