"""The whole-model sections of conformance: SmolLM2 on one stored prompt, f32 and int8."""

import hashlib
from collections.abc import Iterator

import numpy as np

from crucible.device.base import Device
from crucible.errors import InputError, UnavailableError
from crucible.gates.sections import Check, Section
from crucible.gates.vectors import VectorFile
from crucible.kv.slices import Slice
from crucible.linear.weights import quantize_weight
from crucible.model.cache import pages_for
from crucible.model.fetch import cached
from crucible.model.generate import generate
from crucible.model.model import Model, open_checkpoint
from crucible.numerics.digest import digest

NAME = "smollm2"


def _words(digests) -> np.ndarray:
    """Hex digests as uint64 [n][2], so that they compare like any array."""
    try:
        data = b"".join(bytes.fromhex(str(d)) for d in np.atleast_1d(digests))
        return np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, 2)
    except ValueError:
        raise InputError(f"{digests} are not digests of 32 hex characters") from None


def _same_digests(label: str, expected, actual) -> Check:
    expected, actual = _words(expected), _words(actual)
    return Check(label, expected.shape[0], expected, actual)


def _need_model() -> None:
    if cached(NAME) is None:
        raise UnavailableError(f"model file not here: run crucible fetch {NAME}")


def _weights(device: Device, v: VectorFile) -> Iterator[Check]:
    _need_model()
    checkpoint = open_checkpoint(NAME)
    tensors = [checkpoint.read_tensor(str(name)) for name in v["weight_names"]]
    yield _same_digests("weight_digests", v["weight_digests"], [digest(t) for t in tensors])
    quantized = [quantize_weight(device, device.upload(t)) for t in tensors[: v["int8_q_digests"].size]]
    plain = [hashlib.blake2b(device.download(q), digest_size=16).hexdigest() for q, _ in quantized]
    yield _same_digests("int8_q_digests", v["int8_q_digests"], plain)
    scales = [digest(device.download(scale)) for _, scale in quantized]
    yield _same_digests("int8_s_digests", v["int8_s_digests"], scales)


def _model(mode: str) -> Section:
    def section(device: Device, v: VectorFile) -> Iterator[Check]:
        _need_model()
        model = Model.load(NAME, device=device.name, mode=mode)
        if mode == "f32":
            yield Check("ids", 1, v["ids"], np.array(model.encode(str(v["text"])), np.int32))
        yield from _prefill(model, mode, v)
        yield from _generated(model, mode, v)

    return section


def _prefill(model: Model, mode: str, v: VectorFile) -> Iterator[Check]:
    """Step by step through layer 0, so that the first difference names the step, then logits, K and V."""
    rows: dict[str, np.ndarray] = {}

    def keep(name, layer, array) -> None:
        if layer in (None, 0):
            name = name if layer is None else f"l0_{name}"
            rows[name] = np.array(model.device.download(array)[-1], np.float32).reshape(-1)

    ids = v["ids"].tolist()
    cache = model.new_cache(pages_for(len(ids)))
    cache.reserve(0, len(ids))
    logits = model.transformer.forward(ids, [Slice(0, 0, len(ids))], cache, trace=keep)
    logits = model.device.download(logits)[0]
    prefix = f"{mode}_trace_"
    for label in (name for name in v.arrays if name.startswith(prefix)):
        yield Check(label, 1, v[label], rows[label.removeprefix(prefix)])
    yield Check(f"{mode}_logits", 1, v[f"{mode}_logits"], logits)
    k, value = cache.read(0, len(ids))
    made = {"logits": logits, "k0": k[0], "v0": value[0], "k29": k[29], "v29": value[29]}
    for label, array in (made | {"k_all": k, "v_all": value}).items():
        label = f"{mode}_{label}_digest"
        yield _same_digests(label, v[label], digest(array))


def _generated(model: Model, mode: str, v: VectorFile) -> Iterator[Check]:
    drawn = {"top_k": int(v["top_k"]), "top_p": float(v["top_p"]), "seed": int(v["seed"])}
    drawn["temperature"] = float(v["temperature"])
    for label, options in ((f"{mode}_greedy", {}), (f"{mode}_seeded", drawn)):
        steps = v[label].size
        made = generate(model, v["ids"].tolist(), max_tokens=steps, ignore_eos=True, **options)
        yield Check(label, steps, v[label], np.array(made.tokens, np.int32))
        yield _same_digests(f"{label}_steps", v[f"{label}_step_digests"], made.logits_digests)


MODEL_SECTIONS: dict[str, Section] = {
    "smollm2 weights": _weights,
    "smollm2 f32": _model("f32"),
    "smollm2 int8": _model("int8"),
}
