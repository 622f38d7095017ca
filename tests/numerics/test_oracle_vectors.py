"""The NumPy oracle reproduces every stored vector bit for bit."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from crucible.numerics import scalar
from crucible.numerics.bits import assert_same_bits

VECTORS = Path(__file__).parent.parent / "vectors"


def load(name):
    return np.load(VECTORS / f"{name}.npz")


def test_exp_and_sigmoid():
    z = load("exp")
    assert_same_bits(z["exp_y"], scalar.exp(z["exp_x"]))
    assert_same_bits(z["sigmoid_y"], scalar.sigmoid(z["sigmoid_g"]))


def test_sums_and_trees():
    z = load("sums")
    parts = [z["x"][a:b] for a, b in itertools.pairwise(z["offsets"])]
    assert_same_bits(z["sum256"], np.stack([scalar.sum256(p) for p in parts]))
    assert_same_bits(z["sumsq256"], np.stack([scalar.sumsq256(p) for p in parts]))
    assert_same_bits(z["tree32"], scalar.tree32(z["tree32_p"]))


@pytest.mark.parametrize("name", sorted(p.stem for p in VECTORS.glob("attention_*.npz")))
def test_attention(name):
    z = load(name)
    pools = (z["kpool"], z["vpool"], z["tables"])
    out = scalar.attention(z["q"], *pools, z["desc"], int(z["layer"]), int(z["Hkv"]))
    assert_same_bits(z["out"], out)
    if "chunk_q" in z:
        out = scalar.attention(z["chunk_q"], *pools, z["chunk_desc"], int(z["layer"]), int(z["Hkv"]))
        assert_same_bits(z["chunk_out"], out)


@pytest.mark.parametrize("k", [64, 256, 576, 1536])
def test_linear_f32(k):
    z = load(f"linear_f32_k{k}")
    assert_same_bits(z["y"], scalar.linear_f32(z["x"], z["w"]))
    assert_same_bits(z["y_bias"], scalar.linear_f32(z["x"], z["w"], z["bias"]))
    assert_same_bits(z["sub_y"], scalar.linear_f32(z["sub_x"], z["sub_w"]))
    assert_same_bits(z["negzero_y"], scalar.linear_f32(z["negzero_x"], z["negzero_w"]), allow_zero=True)


@pytest.mark.parametrize("k", [64, 256, 576, 1536])
def test_linear_i8(k):
    z = load(f"linear_i8_k{k}")
    qw, s_w = scalar.quantize_weight(z["w"])
    q, top = scalar.quantize_rows(z["x"])
    hi, lo = scalar.split_rows(q)
    made = {"qw": qw, "s_w": s_w, "q": q, "A": top, "hi": hi, "lo": lo}
    made |= {"T": scalar.linear_i8_sums(q, qw), "y": scalar.linear_i8(z["x"], qw, s_w)}
    made["embed"] = scalar.dequantize(qw[:4], s_w[:4])
    for key, value in made.items():
        assert_same_bits(z[key], value, key)


def test_rmsnorm_swiglu_residual():
    z = load("rmsnorm")
    for n in (64, 576, 1536):
        for i in (0, 1):
            y = scalar.rmsnorm(z[f"x_{n}"], z[f"w_{n}"], z["eps"][i])
            assert_same_bits(z[f"y_{n}_eps{i}"], y)
    z = load("swiglu")
    assert_same_bits(z["h"], scalar.swiglu(z["g"], z["u"]))
    assert_same_bits(z["res_z"], scalar.residual(z["res_x"], z["res_y"]))


@pytest.mark.parametrize("i", range(4))
def test_rope(i):
    z = load("rope")
    frequencies = scalar.rope_frequencies(z[f"theta_{i}"], int(z[f"D_{i}"]))
    assert_same_bits(z[f"f_{i}"], frequencies)
    pairs = [[scalar.cos_sin(int(p), f) for f in frequencies] for p in z["positions"]]
    cos, sin = np.moveaxis(np.array(pairs, np.float32), -1, 0)
    assert_same_bits(z[f"cos_{i}"], cos)
    assert_same_bits(z[f"sin_{i}"], sin)
    assert_same_bits(z[f"y_{i}"], scalar.rope(z[f"x_{i}"], cos, sin))


def test_philox_draws_and_ln():
    z = load("philox")
    assert_same_bits(z["out"], scalar.philox4x32(z["ctr"], z["key"]))
    draws = [[scalar.draw(int(s), int(n)) for n in z["draw_n"]] for s in z["draw_seed"]]
    assert_same_bits(z["draw_u"], np.array(draws))
    z = load("gumbel")
    assert_same_bits(z["ln_y"], scalar.ln(z["ln_v"]))


def cases(z, prefix):
    keys = ("logits", "temperature", "top_k", "top_p")
    for row in zip(*(z[f"{prefix}_{key}"] for key in keys), strict=True):
        i = int(row[0])
        logits = z["logits"][z["offsets"][i] : z["offsets"][i + 1]]
        yield logits, row[1], int(row[2]), float(row[3])


def test_seeded_samples_and_ranks():
    z = load("sampling")
    made = [
        scalar.sample(*case, int(seed), int(n))
        for case, seed, n in zip(cases(z, "case"), z["case_seed"], z["case_n"], strict=True)
    ]
    token, kept, u = zip(*made, strict=True)
    assert_same_bits(z["case_token"], np.array(token, np.int32))
    assert_same_bits(z["case_kept"], np.array(kept, np.int32))
    assert_same_bits(z["case_u"], np.array(u))
    made = [scalar.sample(*case, 0, 0, u=float(u)) for case, u in zip(cases(z, "u"), z["u_u"], strict=True)]
    assert_same_bits(z["u_token"], np.array([m[0] for m in made], np.int32))
    assert_same_bits(z["u_kept"], np.array([m[1] for m in made], np.int32))
    logits = [z["logits"][a:b] for a, b in itertools.pairwise(z["offsets"])]
    assert_same_bits(z["greedy"], np.array([scalar.greedy(x) for x in logits], np.int32))
    assert_same_bits(z["rank_big"], scalar.rank(logits[0], 1, 512))
    assert_same_bits(z["rank_ties"], scalar.rank(logits[1], 1, 512))


def test_gumbel_samples_and_logprobs():
    z = load("gumbel")
    made = [
        scalar.sample(*case, int(seed), int(n), "gumbel-id")
        for case, seed, n in zip(cases(z, "case"), z["case_seed"], z["case_n"], strict=True)
    ]
    assert_same_bits(z["case_token"], np.array([m[0] for m in made], np.int32))
    assert_same_bits(z["case_kept"], np.array([m[1] for m in made], np.int32))
    made = [scalar.logprobs(z["logits"][z["offsets"][i] : z["offsets"][i + 1]]) for i in (0, 1, 2, 3, 5, 6)]
    assert_same_bits(z["logprobs"], np.concatenate(made))
