"""The operations that conformance vectors hold to their expected bits, one function per section."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from crucible.attention.run import VARIANTS, attention
from crucible.errors import InputError, NoKernelError
from crucible.gates.vectors import VectorFile
from crucible.kv.validation import validate
from crucible.linear.apply import linear, linear_sums, quantize_rows
from crucible.linear.weights import pack, pack_int8, quantize_weight
from crucible.numerics.contract import PAGE_SIZE
from crucible.numerics.scalar import split_rows
from crucible.ops import pointwise, sums
from crucible.ops.embedding import embed
from crucible.ops.norm import rmsnorm
from crucible.ops.rope import rope
from crucible.ops.rope_tables import rope_frequencies, rope_table
from crucible.sampling.params import SamplingParams
from crucible.sampling.philox import philox, uniform
from crucible.sampling.sample import greedy, ln, logprobs, rank, sample


@dataclass(frozen=True)
class Check:
    """One array held to its expected bits; `cases` counts what no earlier array of the section counted."""

    label: str
    cases: int
    expected: np.ndarray
    actual: np.ndarray


Section = Callable[[object, VectorFile], Iterator[Check]]


def _simple(label: str, operation: Callable, *inputs: str) -> Section:
    """A section of one operation on whole arrays: every row is a case."""

    def section(device, v: VectorFile) -> Iterator[Check]:
        out = operation(device, *(device.upload(v[name]) for name in inputs))
        yield Check(label, v[label].shape[0], v[label], device.download(out))

    return section


def _row(operation: Callable) -> Callable:
    """`operation` on flat arrays [n], given to it as one row."""

    def flat(device, *arrays):
        return operation(device, *(a.reshape(1, -1) for a in arrays)).reshape(-1)

    return flat


def _attention(variant: str) -> Section:
    def section(device, v: VectorFile) -> Iterator[Check]:
        for prefix in ("", "chunk_"):
            if prefix + "q" not in v:
                continue
            q, desc, tables = v[prefix + "q"], v[prefix + "desc"], v["tables"]
            room = tables.shape[1] * PAGE_SIZE
            extents = {"num_pages": v["kpool"].shape[0], "rows": q.shape[0], "capacity": room}
            validate(desc, tables, **extents, writes=False)
            arrays = [device.upload(a) for a in (q, v["kpool"], v["vpool"], tables, desc)]
            out = attention(device, *arrays, int(v["layer"]), int(v["Hkv"]), q.shape[2], variant=variant)
            yield Check(prefix + "out", q.shape[0] * q.shape[1], v[prefix + "out"], device.download(out))

    return section


def _linear_f32(device, v: VectorFile) -> Iterator[Check]:
    runs = (("", "y", None), ("", "y_bias", "bias"), ("sub_", "sub_y", None), ("negzero_", "negzero_y", None))
    for prefix, label, bias in runs:
        bias = device.upload(v[bias]) if bias else None
        weight = pack(device, device.upload(v[prefix + "w"]), "f32", bias)
        y = linear(device, device.upload(v[prefix + "x"]), weight)
        yield Check(label, v[label].shape[0], v[label], device.download(y))


def _quantize(device, v: VectorFile) -> Iterator[Check]:
    qw, s_w = map(device.download, quantize_weight(device, device.upload(v["w"])))
    q, top = quantize_rows(device, device.upload(v["x"]))
    hi, lo = split_rows(q) if device.name == "cpu" else _digits(device, q)
    q = q if device.name == "cpu" else (256 * hi.astype(np.int32) + lo).astype(np.int16)
    made = {"qw": qw, "s_w": s_w, "q": q, "A": device.download(top), "hi": hi, "lo": lo}
    for label, actual in made.items():
        yield Check(label, v[label].shape[0] if label in ("qw", "q") else 0, v[label], actual)


def _digits(device, q) -> list[np.ndarray]:
    """hi and lo int8 [T][K] of rows quantized on cuda or simt, from [slice][group][digit][core][line][16]."""
    planes = (device.download(q.digits)[:, :, digit].transpose(1, 3, 0, 2, 4) for digit in (0, 1))
    return [p.reshape(p.shape[0] * p.shape[1], -1)[: q.rows, : q.k] for p in planes]


def _linear_i8(device, v: VectorFile) -> Iterator[Check]:
    weight = pack_int8(device, device.upload(v["qw"]), device.upload(v["s_w"]))
    x = device.upload(v["x"])
    q = device.upload(v["q"]) if device.name == "cpu" else quantize_rows(device, x)[0]
    made = {"T": linear_sums(device, q, weight), "y": linear(device, x, weight)}
    for label, actual in made.items():
        yield Check(label, v[label].shape[0] if label == "y" else 0, v[label], device.download(actual))


def _embed_i8(device, v: VectorFile) -> Iterator[Check]:
    table = (device.upload(v["qw"]), device.upload(v["s_w"]))
    rows = embed(device, table, device.upload(np.arange(v["embed"].shape[0], dtype=np.int32)))
    yield Check("embed", v["embed"].shape[0], v["embed"], device.download(rows))


def _rmsnorm(device, v: VectorFile) -> Iterator[Check]:
    for n in v.indices("x_{i}"):
        for e, eps in enumerate(v["eps"]):
            y = rmsnorm(device, device.upload(v[f"x_{n}"]), device.upload(v[f"w_{n}"]), eps)
            label = f"y_{n}_eps{e}"
            yield Check(label, y.shape[0], v[label], device.download(y))


def _rope_tables(device, v: VectorFile) -> Iterator[Check]:
    for i in v.indices("theta_{i}"):
        theta, head_dim = v[f"theta_{i}"][()], int(v[f"D_{i}"])
        cos, sin = rope_table(theta, head_dim, v["positions"])
        for label, actual in (("f", rope_frequencies(theta, head_dim)), ("cos", cos), ("sin", sin)):
            cases = 0 if label == "sin" else actual.shape[0]
            yield Check(f"{label}_{i}", cases, v[f"{label}_{i}"], actual)


def _rope(device, v: VectorFile) -> Iterator[Check]:
    for i in v.indices("theta_{i}"):
        x = v[f"x_{i}"]
        # Row r of the expected tables is the table row of row r.
        rows = np.arange(x.shape[0], dtype=np.int32)
        arrays = [device.upload(a) for a in (x.reshape(x.shape[0], -1), rows, v[f"cos_{i}"], v[f"sin_{i}"])]
        y = device.download(rope(device, *arrays, int(v[f"D_{i}"]))).reshape(x.shape)
        yield Check(f"y_{i}", x.shape[0] * x.shape[1], v[f"y_{i}"], y)


def _logits(device, v: VectorFile) -> list:
    offsets = v["offsets"]
    if offsets[0] != 0 or offsets[-1] != v["logits"].size or (np.diff(offsets) < 1).any():
        raise InputError(f"{v.path}: offsets must ascend from 0 to {v['logits'].size}, the length of logits")
    return [device.upload(v["logits"][a:b]) for a, b in pairwise(offsets)]


def _samples(device, v: VectorFile, prefix: str, sampler: str) -> list:
    logits = _logits(device, v)
    made = []
    for c, which in enumerate(v[f"{prefix}_logits"].tolist()):
        if not 0 <= which < len(logits):
            raise InputError(f"{v.path}: {prefix}_logits[{c}] = {which} is outside 0..{len(logits) - 1}")
        numbers = (v[f"{prefix}_temperature"][c], v[f"{prefix}_top_k"][c], v[f"{prefix}_top_p"][c])
        if prefix == "u":
            made.append(sample(device, logits[which], SamplingParams(*numbers), u=float(v["u_u"][c])))
        else:
            params = SamplingParams(*numbers, int(v["case_seed"][c]), sampler)
            made.append(sample(device, logits[which], params, int(v["case_n"][c])))
    return made


def _sampled(prefix: str, sampler: str) -> Section:
    def section(device, v: VectorFile) -> Iterator[Check]:
        made = _samples(device, v, prefix, sampler)
        for field in ("token", "kept", "u"):
            label = f"{prefix}_{field}"
            if label != "u_u" and label in v:
                actual = np.array([getattr(s, field) for s in made], v[label].dtype)
                yield Check(label, len(made) if field == "token" else 0, v[label], actual)

    return section


def _ranks(device, v: VectorFile) -> Iterator[Check]:
    logits = _logits(device, v)
    yield Check("greedy", len(logits), v["greedy"], np.array([greedy(device, x) for x in logits], np.int32))
    for label, x in zip(("rank_big", "rank_ties"), logits[:2], strict=True):
        yield Check(label, 1, v[label], rank(device, x, 1, v[label].size))


def _draws(device, v: VectorFile) -> Iterator[Check]:
    actual = [[uniform(device, s, n) for n in v["draw_n"].tolist()] for s in v["draw_seed"].tolist()]
    yield Check("draw_u", v["draw_u"].size, v["draw_u"], np.array(actual))


def _logprobs(device, v: VectorFile) -> Iterator[Check]:
    # Logits with a -inf are left out of the file.
    parts = [x for x in _logits(device, v) if np.isfinite(device.download(x)).all()]
    actual = np.concatenate([logprobs(device, x) for x in parts])
    yield Check("logprobs", len(parts), v["logprobs"], actual)


def attention_sections(device) -> dict[str, Section]:
    """One section per exact attention variant that the device has; NoKernelError where it has none."""
    names = [
        name
        for name, entry in VARIANTS.items()
        if entry.exact and device.name in entry.launchers and not entry.ablation
    ]
    if not names:
        raise NoKernelError("attention", device.name)
    return {f"attention {name}": _attention(name) for name in names}


# What the host computes for every device; on other devices than cpu an equal result says nothing of them.
HOST = frozenset({"rope tables"})

SECTIONS: dict[str, dict[str, Section]] = {
    "exp": {
        "exp": _simple("exp_y", pointwise.exp, "exp_x"),
        "sigmoid": _simple("sigmoid_y", pointwise.sigmoid, "sigmoid_g"),
    },
    "sums": {
        "sum256": _simple("sum256", sums.sum256, "x", "offsets"),
        "sumsq256": _simple("sumsq256", sums.sumsq256, "x", "offsets"),
        "tree32": _simple("tree32", sums.tree32, "tree32_p"),
    },
    "linear_f32": {"linear f32": _linear_f32},
    "linear_i8": {"quantize": _quantize, "linear int8": _linear_i8, "embedding int8": _embed_i8},
    "rmsnorm": {"rmsnorm": _rmsnorm},
    "rope": {"rope tables": _rope_tables, "rope": _rope},
    "swiglu": {
        "swiglu": _simple("h", _row(pointwise.swiglu), "g", "u"),
        "residual": _simple("res_z", pointwise.residual, "res_x", "res_y"),
    },
    "sampling": {
        "seeded": _sampled("case", "inverse-cdf"),
        "given u": _sampled("u", "inverse-cdf"),
        "greedy and ranks": _ranks,
    },
    "philox": {"philox": _simple("out", philox, "ctr", "key"), "draws": _draws},
    "gumbel": {
        "gumbel-id": _sampled("case", "gumbel-id"),
        "ln": _simple("ln_y", ln, "ln_v"),
        "logprobs": _logprobs,
    },
}
