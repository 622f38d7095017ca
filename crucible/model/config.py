"""What a model is: sizes and constants of a checkpoint; every unsupported feature is refused by name."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible.errors import InputError, UnsupportedError
from crucible.files import brief

ARCHITECTURES = ("llama", "qwen2", "qwen3")
HF_CLASSES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}

# Kinds of linear layer of a block, in the names of the canonical (GGUF) scheme.
ATTENTION_LINEARS = ("attn_q", "attn_k", "attn_v")
BLOCK_LINEARS = (*ATTENTION_LINEARS, "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Llama-family model; D = head_dim, G = heads / kv_heads.

    `biases` names the block linears that carry a bias; `eps` is the f32 of RMSNorm;
    `rope_theta` the base of the rotary frequencies; `context` the largest number of positions.
    Raises UnsupportedError for a geometry outside version 1 of the contract.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rope_theta: float
    eps: float
    tied: bool
    biases: frozenset[str] = frozenset()
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"model config: {name} is {value!r}, it must be a positive integer")
        for fused in (ATTENTION_LINEARS, ("ffn_gate", "ffn_up")):
            if 0 < len(self.biases.intersection(fused)) < len(fused):
                raise UnsupportedError(f"a bias on some but not all of {', '.join(fused)} is not covered")
        if self.heads % self.kv_heads:
            raise UnsupportedError(
                f"model config: {self.heads} query heads do not share {self.kv_heads} key/value heads evenly"
            )
        if self.head_dim % 32:
            raise UnsupportedError(
                f"head_dim {self.head_dim} is not a multiple of 32, which version 1 of the contract requires"
            )
        if not (math.isfinite(self.rope_theta) and self.rope_theta >= 1):
            raise InputError(
                f"model config: rope theta is {self.rope_theta!r}, it must be finite and at least 1"
            )
        with np.errstate(over="ignore"):
            eps = float(np.float32(self.eps))
        if not (math.isfinite(eps) and self.eps >= 0):
            raise InputError(
                f"model config: RMSNorm eps is {self.eps!r}, it must be >= 0 and finite as a float32"
            )
        object.__setattr__(self, "eps", eps)

    @property
    def q_dim(self) -> int:
        """Width of the query rows, heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of the key and value rows, kv_heads * head_dim."""
        return self.kv_heads * self.head_dim

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical tensor name -> shape ([out][in] for linears): what a loader must deliver."""
        linears = {
            "attn_q": (self.q_dim, self.hidden),
            "attn_k": (self.kv_dim, self.hidden),
            "attn_v": (self.kv_dim, self.hidden),
            "attn_output": (self.hidden, self.q_dim),
            "ffn_gate": (self.ffn, self.hidden),
            "ffn_up": (self.ffn, self.hidden),
            "ffn_down": (self.hidden, self.ffn),
        }
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            shapes[prefix + "attn_norm.weight"] = (self.hidden,)
            shapes[prefix + "ffn_norm.weight"] = (self.hidden,)
            if self.qk_norm:
                shapes[prefix + "attn_q_norm.weight"] = (self.head_dim,)
                shapes[prefix + "attn_k_norm.weight"] = (self.head_dim,)
            for kind, shape in linears.items():
                shapes[f"{prefix}{kind}.weight"] = shape
                if kind in self.biases:
                    shapes[f"{prefix}{kind}.bias"] = shape[:1]
        shapes["output_norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["output.weight"] = (self.vocab, self.hidden)
        return shapes


def _need(found: Mapping[str, Any], key: str, where: str) -> Any:
    if found.get(key) is None:
        raise InputError(f"{where} lacks the key {key}")
    return found[key]


# Typed getters of config.json and GGUF metadata: (found, key, where) -> the value, which must be there.


def integer(found: Mapping[str, Any], key: str, where: str) -> int:
    """An integer of 64 bits; UnsupportedError for a list of them, which a layer-wise model has."""
    value = _need(found, key, where)
    if type(value) is not int or not -(2**63) <= value < 2**64:
        listed = isinstance(value, list | np.ndarray)
        shown = "a list (a different value per layer)" if listed else brief(value)
        raise UnsupportedError(f"{where}: {key} is {shown}; version 1 takes one integer for all layers")
    return value


def number(found: Mapping[str, Any], key: str, where: str) -> float:
    """An integer or a float, as a float."""
    value = _need(found, key, where)
    if type(value) not in (int, float):
        raise InputError(f"{where}: {key} is {brief(value)}, it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{where}: {key} is {brief(value)}, no float64 is as large") from None


def text(found: Mapping[str, Any], key: str, where: str) -> str:
    """A text."""
    return _of_type(found, key, where, str, "text")


def flag(found: Mapping[str, Any], key: str, where: str) -> bool:
    """True or False."""
    return _of_type(found, key, where, bool, "true or false")


def mapping(found: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """A JSON object."""
    return _of_type(found, key, where, dict, "an object")


def texts(found: Mapping[str, Any], key: str, where: str) -> list[str]:
    """A list of texts."""
    value = _of_type(found, key, where, list, "a list of texts")
    if not all(isinstance(entry, str) for entry in value):
        raise InputError(f"{where}: {key} is {brief(value)}, it must be a list of texts")
    return value


def _of_type(found: Mapping[str, Any], key: str, where: str, kind: type, what: str) -> Any:
    value = _need(found, key, where)
    if not isinstance(value, kind):
        raise InputError(f"{where}: {key} is {brief(value)}, it must be {what}")
    return value


def optional(getter: Callable, found: Mapping[str, Any], key: str, where: str, default: Any = None) -> Any:
    """What `getter` finds, or `default` for an absent or null key; no other value counts as absent."""
    return default if found.get(key) is None else getter(found, key, where)


def _refuse(where: str, key: str, value: Any, why: str) -> None:
    raise UnsupportedError(
        f"{where}: {key} = {brief(value)} ({why}) is not part of version 1 of the contract"
    )


# GGUF keys (after the architecture prefix) that change the arithmetic, with what they stand for.
_GGUF_REFUSED = {
    "expert_count": "mixture of experts",
    "attention.sliding_window": "sliding-window attention",
    "attention.scale": "a custom attention scale",
    "logit_scale": "scaled logits",
    "embedding_scale": "scaled embeddings",
    "residual_scale": "scaled residuals",
    "attn_logit_softcapping": "soft-capped scores",
    "final_logit_softcapping": "soft-capped logits",
    "rope.scaling.factor": "rope scaling",
    "rope.scale_linear": "rope scaling",
}


def from_gguf(metadata: Mapping[str, Any], tensor_names: Iterable[str]) -> ModelConfig:
    """ModelConfig of GGUF metadata; biases and the untied head follow from the tensors present.

    Raises UnsupportedError naming the key or tensor that version 1 does not cover, InputError for
    a missing key.
    """
    where = "GGUF metadata"
    arch = text(metadata, "general.architecture", where)
    if arch not in ARCHITECTURES:
        raise UnsupportedError(
            f"GGUF architecture {brief(arch)} is not covered; version 1 covers {', '.join(ARCHITECTURES)}"
        )
    names = set(tensor_names)
    if "rope_freqs.weight" in names:
        _refuse("GGUF file", "tensor rope_freqs.weight", "present", "rope scaling")
    if any("_exps." in n or "ffn_gate_inp" in n for n in names):
        expert = min(n for n in names if "_exps." in n or "ffn_gate_inp" in n)
        raise UnsupportedError(
            f"GGUF tensor {expert} (mixture of experts) is not part of version 1 of the contract"
        )
    for key, why in _GGUF_REFUSED.items():
        value = metadata.get(f"{arch}.{key}")
        if isinstance(value, str | list | np.ndarray) or (
            value and not (key[:5] == "rope." and value == 1.0)
        ):
            _refuse(where, f"{arch}.{key}", value, why)
    scaling = optional(text, metadata, f"{arch}.rope.scaling.type", where, "none")
    if scaling != "none":
        _refuse(where, f"{arch}.rope.scaling.type", scaling, "rope scaling")

    heads = integer(metadata, f"{arch}.attention.head_count", where)
    hidden = integer(metadata, f"{arch}.embedding_length", where)
    if f"{arch}.attention.key_length" in metadata:
        head_dim = integer(metadata, f"{arch}.attention.key_length", where)
    elif heads < 1 or hidden % heads:
        raise UnsupportedError(f"{where}: {hidden} channels do not split into {heads} heads evenly")
    else:
        head_dim = hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if optional(integer, metadata, f"{arch}.{key}", where, head_dim) != head_dim:
            _refuse(where, f"{arch}.{key}", metadata[f"{arch}.{key}"], f"it differs from head_dim {head_dim}")
    theta_key = f"{arch}.rope.freq_base"
    kv_key = f"{arch}.attention.head_count_kv"
    vocab_key = f"{arch}.vocab_size"
    tokens = metadata.get("tokenizer.ggml.tokens")
    if vocab_key not in metadata and not isinstance(tokens, list):
        raise InputError(f"{where} lacks both {vocab_key} and a list tokenizer.ggml.tokens")
    return ModelConfig(
        architecture=arch,
        layers=integer(metadata, f"{arch}.block_count", where),
        hidden=hidden,
        heads=heads,
        kv_heads=integer(metadata, kv_key, where) if kv_key in metadata else heads,
        head_dim=head_dim,
        ffn=integer(metadata, f"{arch}.feed_forward_length", where),
        vocab=integer(metadata, vocab_key, where) if vocab_key in metadata else len(tokens),
        context=integer(metadata, f"{arch}.context_length", where),
        rope_theta=number(metadata, theta_key, where) if theta_key in metadata else 10000.0,
        eps=number(metadata, f"{arch}.attention.layer_norm_rms_epsilon", where),
        tied="output.weight" not in names,
        biases=frozenset(kind for kind in BLOCK_LINEARS if f"blk.0.{kind}.bias" in names),
        qk_norm=arch == "qwen3",
    )


# Keys that plain rotary parameters may have; any other could change the angles.
_ROPE_KEYS = ("rope_type", "type", "rope_theta", "factor", "partial_rotary_factor")


def _check_rope(found: Mapping[str, Any], where: str) -> float:
    """The base of plain rotary frequencies; anything in config.json that asks for others is refused."""
    theta = {"rope_theta": optional(number, found, "rope_theta", where)}
    for name in ("rope_scaling", "rope_parameters"):
        rope, inside = optional(mapping, found, name, where, {}), f"{where}: {name}"
        for key in ("rope_type", "type"):
            kind = optional(text, rope, key, inside, "default")
            if kind != "default":
                _refuse(where, name, kind, "rope scaling")
        for key in rope:
            if key not in _ROPE_KEYS and rope[key] is not None:
                _refuse(where, f"{name}.{key}", rope[key], "rope scaling, or another for each kind of layer")
        if optional(number, rope, "factor", inside, 1.0) != 1.0:
            _refuse(where, f"{name}.factor", rope["factor"], "rope scaling")
        if optional(number, rope, "partial_rotary_factor", inside, 1.0) != 1.0:
            _refuse(where, "partial_rotary_factor", rope["partial_rotary_factor"], "partial rotation")
        theta[f"{name}.rope_theta"] = optional(number, rope, "rope_theta", inside)
    given = {key: value for key, value in theta.items() if value is not None}
    if len(set(given.values())) > 1:
        listed = " and ".join(f"{key} = {value!r}" for key, value in given.items())
        raise InputError(f"{where}: {listed} contradict each other")
    return next(iter(given.values()), 10000.0)


def _check_hf_extras(found: Mapping[str, Any], where: str) -> None:
    """Refuse every config.json key that would change the arithmetic."""
    if optional(flag, found, "rope_interleaved", where):
        _refuse(where, "rope_interleaved", True, "interleaved rotation")
    if optional(number, found, "partial_rotary_factor", where, 1.0) != 1.0:
        _refuse(where, "partial_rotary_factor", found["partial_rotary_factor"], "partial rotation")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if optional(integer, found, key, where):
            _refuse(where, key, found[key], "mixture of experts")
    window = optional(integer, found, "sliding_window", where)
    if optional(flag, found, "use_sliding_window", where, "sliding_window" in found) and window:
        _refuse(where, "sliding_window", window, "sliding-window attention")
    for kind in optional(texts, found, "layer_types", where, []):
        if kind != "full_attention":
            _refuse(where, "layer_types", kind, "attention other than full")
    if quantization := optional(mapping, found, "quantization_config", where):
        method = quantization.get("quant_method", "unknown")
        _refuse(where, "quantization_config", method, "a pre-quantised checkpoint")
    activation = optional(text, found, "hidden_act", where, "silu")
    if activation not in ("silu", "swish"):
        _refuse(where, "hidden_act", activation, "only SwiGLU is covered")


def from_hf(found: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """ModelConfig of a Hugging Face config.json; same errors as `from_gguf`."""
    classes = optional(texts, found, "architectures", where, [])
    shown = classes[0] if classes else optional(text, found, "model_type", where)
    arch = HF_CLASSES.get(shown) if classes else shown
    if arch not in ARCHITECTURES:
        raise UnsupportedError(
            f"{where}: architecture {brief(shown)} is not covered; version 1 covers {', '.join(HF_CLASSES)}"
        )
    _check_hf_extras(found, where)
    heads = integer(found, "num_attention_heads", where)
    hidden = integer(found, "hidden_size", where)
    if found.get("head_dim") is None and (heads < 1 or hidden % heads):
        raise UnsupportedError(f"{where}: {hidden} channels do not split into {heads} heads evenly")
    biases: set[str] = set()
    if arch == "qwen2":
        biases.update(ATTENTION_LINEARS)
    elif optional(flag, found, "attention_bias", where):
        biases.update(ATTENTION_LINEARS, ("attn_output",))
    if optional(flag, found, "mlp_bias", where):
        biases.update(("ffn_gate", "ffn_up", "ffn_down"))
    return ModelConfig(
        architecture=arch,
        layers=integer(found, "num_hidden_layers", where),
        hidden=hidden,
        heads=heads,
        kv_heads=heads
        if found.get("num_key_value_heads") is None
        else integer(found, "num_key_value_heads", where),
        head_dim=hidden // heads if found.get("head_dim") is None else integer(found, "head_dim", where),
        ffn=integer(found, "intermediate_size", where),
        vocab=integer(found, "vocab_size", where),
        context=integer(found, "max_position_embeddings", where),
        rope_theta=_check_rope(found, where),
        eps=number(found, "rms_norm_eps", where),
        tied=optional(flag, found, "tie_word_embeddings", where, False),
        biases=frozenset(biases),
        qk_norm=arch == "qwen3",
    )
