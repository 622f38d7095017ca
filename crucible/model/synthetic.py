"""Synthetic models: counter-based weights, the same on every machine, and a tokenizer of bytes."""

import hashlib

import numpy as np

from crucible.model.checkpoint import Checkpoint
from crucible.model.config import ModelConfig
from crucible.model.tokenizer import ByteTokenizer
from crucible.numerics import inputs

NAME = "synthetic-12x768"
SEED = 141025
CONFIG = ModelConfig(
    architecture="llama",
    layers=12,
    hidden=768,
    heads=12,
    kv_heads=3,
    head_dim=64,
    ffn=2048,
    vocab=32000,
    context=1024,
    rope_theta=10000.0,
    eps=1e-5,
    tied=True,
)
# Two layers, for tests and gates: a pass takes a millisecond. Grouped heads of 64, so that every attention
# kernel covers it; a vocabulary that is no multiple of a kernel's tile.
TINY = "synthetic-2x64"
TINY_SEED = 20260908
TINY_CONFIG = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=64,
    ffn=96,
    vocab=700,
    context=1024,
    rope_theta=10000.0,
    eps=1e-5,
    tied=False,
)
# Digests of all weights, in the order of tensor_shapes(); see `weights_digest`.
WEIGHTS_DIGEST = "f35664035c63d691322a78703ed622dc"
TINY_WEIGHTS_DIGEST = "b1229d7dc9e2ef847c9010ecd2fb9be5"

# Standard deviations, chosen for behaviour like a trained model's: scores of about +-3 (queries and
# keys), branches that outweigh the token's own embedding after one layer (so a token does not just
# repeat itself through the tied head), and logits with a standard deviation near 3.5 (output norm).
_SCALES = {
    "token_embd": 0.036,
    "attn_q": 0.0625,
    "attn_k": 0.0625,
    "attn_v": 0.036,
    "attn_output": 0.036,
    "ffn_gate": 0.0625,
    "ffn_up": 0.036,
    "ffn_down": 0.036,
}
_NORMS = {"attn_norm": 1.0, "ffn_norm": 1.0, "output_norm": 3.5}
_BLOCK = 1 << 15  # elements made at a time, so that temporaries stay in the cache

CHAT_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def synthetic_tensor(config: ModelConfig, name: str, seed: int = SEED) -> np.ndarray:
    """Tensor `name` of a synthetic model, f32 in the canonical shape.

    Each tensor is one stream of the counter-based generator (numbered by its place in
    `config.tensor_shapes()`), near normal with its kind's scale; norms lie around their mean by
    an eighth.
    """
    shapes = config.tensor_shapes()
    stream, shape = list(shapes).index(name), shapes[name]
    parts = name.split(".")
    kind = parts[2] if parts[0] == "blk" else parts[0]
    out = np.empty(int(np.prod(shape)), np.float32)
    mean = _NORMS.get(kind)
    # Biases and q/k norms do not occur in CONFIG; other synthetic configs (tests) get plain scales.
    if kind.endswith("norm") or parts[-1] == "bias":
        mean = mean or (1.0 if kind.endswith("norm") else 0.0)
        low = mean - 0.125
        out[:] = inputs.uniform(seed, stream, shape, low, low + 0.25).reshape(-1)
        return out.reshape(shape)
    scale = _SCALES.get(kind, _SCALES["token_embd"])
    for start in range(0, out.size, _BLOCK):
        count = min(_BLOCK, out.size - start)
        out[start : start + count] = inputs.normalish(seed, stream, (count,), scale, start)
    return out.reshape(shape)


def weights_digest(checkpoint: Checkpoint) -> str:
    """One digest over every tensor's little-endian f32 bytes, in the order of the config's tensor list."""
    h = hashlib.blake2b(digest_size=16)
    for name in checkpoint.config.tensor_shapes():
        h.update(np.ascontiguousarray(checkpoint.read_tensor(name), "<f4"))
    return h.hexdigest()


def open_named(name: str) -> Checkpoint:
    """Checkpoint of one of the synthetic models that have a name: NAME or TINY."""
    config, seed = {NAME: (CONFIG, SEED), TINY: (TINY_CONFIG, TINY_SEED)}[name]
    return open_synthetic(config, seed, name)


def open_synthetic(config: ModelConfig = CONFIG, seed: int = SEED, name: str = NAME) -> Checkpoint:
    """Checkpoint of a synthetic model with the byte-level tokenizer; nothing is read from disk."""
    return Checkpoint(
        name=name,
        source=None,
        config=config,
        read_tensor=lambda tensor: synthetic_tensor(config, tensor, seed),
        load_tokenizer=lambda: ByteTokenizer(config.vocab),
        eos_ids=(ByteTokenizer.control_id("<|end|>"),),
        chat_template=CHAT_TEMPLATE,
    )
