"""What a model is: sizes and constants of a checkpoint; every unsupported feature is refused by name."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible.errors import InputError, UnsupportedError

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
        if not (math.isfinite(self.rope_theta) and self.rope_theta > 0):
            raise InputError(
                f"model config: rope theta is {self.rope_theta!r}, it must be positive and finite"
            )
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise InputError(f"model config: RMSNorm eps is {self.eps!r}, it must be finite and >= 0")
        object.__setattr__(self, "eps", float(np.float32(self.eps)))

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


def _integer(found: Mapping[str, Any], key: str, where: str) -> int:
    value = _need(found, key, where)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        shown = "a list (a different value per layer)" if isinstance(value, list) else repr(value)
        raise UnsupportedError(f"{where}: {key} is {shown}; version 1 takes one integer for all layers")
    return int(value)


def _number(found: Mapping[str, Any], key: str, where: str) -> float:
    value = _need(found, key, where)
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        raise InputError(f"{where}: {key} is {value!r}, it must be a number")
    return float(value)


def _refuse(where: str, key: str, value: Any, why: str) -> None:
    raise UnsupportedError(f"{where}: {key} = {value!r} ({why}) is not part of version 1 of the contract")


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
    arch = _need(metadata, "general.architecture", where)
    if arch not in ARCHITECTURES:
        raise UnsupportedError(
            f"GGUF architecture {arch!r} is not covered; version 1 covers {', '.join(ARCHITECTURES)}"
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
        if value and not (key.startswith("rope.") and value == 1.0):
            _refuse(where, f"{arch}.{key}", value, why)
    scaling = metadata.get(f"{arch}.rope.scaling.type", "none")
    if scaling != "none":
        _refuse(where, f"{arch}.rope.scaling.type", scaling, "rope scaling")

    heads = _integer(metadata, f"{arch}.attention.head_count", where)
    hidden = _integer(metadata, f"{arch}.embedding_length", where)
    if f"{arch}.attention.key_length" in metadata:
        head_dim = _integer(metadata, f"{arch}.attention.key_length", where)
    elif heads < 1 or hidden % heads:
        raise UnsupportedError(f"{where}: {hidden} channels do not split into {heads} heads evenly")
    else:
        head_dim = hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if metadata.get(f"{arch}.{key}", head_dim) != head_dim:
            _refuse(where, f"{arch}.{key}", metadata[f"{arch}.{key}"], f"it differs from head_dim {head_dim}")
    theta_key = f"{arch}.rope.freq_base"
    kv_key = f"{arch}.attention.head_count_kv"
    vocab_key = f"{arch}.vocab_size"
    tokens = metadata.get("tokenizer.ggml.tokens")
    if vocab_key not in metadata and tokens is None:
        raise InputError(f"{where} lacks both {vocab_key} and tokenizer.ggml.tokens")
    return ModelConfig(
        architecture=arch,
        layers=_integer(metadata, f"{arch}.block_count", where),
        hidden=hidden,
        heads=heads,
        kv_heads=_integer(metadata, kv_key, where) if kv_key in metadata else heads,
        head_dim=head_dim,
        ffn=_integer(metadata, f"{arch}.feed_forward_length", where),
        vocab=_integer(metadata, vocab_key, where) if vocab_key in metadata else len(tokens),
        context=_integer(metadata, f"{arch}.context_length", where),
        rope_theta=_number(metadata, theta_key, where) if theta_key in metadata else 10000.0,
        eps=_number(metadata, f"{arch}.attention.layer_norm_rms_epsilon", where),
        tied="output.weight" not in names,
        biases=frozenset(kind for kind in BLOCK_LINEARS if f"blk.0.{kind}.bias" in names),
        qk_norm=arch == "qwen3",
    )


def _check_hf_extras(found: Mapping[str, Any], where: str) -> None:
    """Refuse every config.json key that would change the arithmetic."""
    rope = found.get("rope_scaling") or found.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or rope.get("factor", 1.0) != 1.0:
        _refuse(where, "rope_scaling", kind, "rope scaling")
    if found.get("rope_interleaved"):
        _refuse(where, "rope_interleaved", True, "interleaved rotation")
    rotary = found.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0))
    if rotary not in (None, 1, 1.0):
        _refuse(where, "partial_rotary_factor", rotary, "partial rotation")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if found.get(key):
            _refuse(where, key, found[key], "mixture of experts")
    if found.get("use_sliding_window", "sliding_window" in found) and found.get("sliding_window"):
        _refuse(where, "sliding_window", found["sliding_window"], "sliding-window attention")
    if any(kind != "full_attention" for kind in found.get("layer_types") or ()):
        other = next(kind for kind in found["layer_types"] if kind != "full_attention")
        _refuse(where, "layer_types", other, "attention other than full")
    if found.get("quantization_config"):
        method = found["quantization_config"].get("quant_method", "unknown")
        _refuse(where, "quantization_config", method, "a pre-quantised checkpoint")
    activation = found.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        _refuse(where, "hidden_act", activation, "only SwiGLU is covered")


def from_hf(found: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """ModelConfig of a Hugging Face config.json; same errors as `from_gguf`."""
    classes = found.get("architectures") or []
    arch = HF_CLASSES.get(classes[0]) if classes else found.get("model_type")
    if arch not in ARCHITECTURES:
        shown = classes[0] if classes else found.get("model_type")
        raise UnsupportedError(
            f"{where}: architecture {shown!r} is not covered; version 1 covers {', '.join(HF_CLASSES)}"
        )
    _check_hf_extras(found, where)
    heads = _integer(found, "num_attention_heads", where)
    hidden = _integer(found, "hidden_size", where)
    if found.get("head_dim") is None and (heads < 1 or hidden % heads):
        raise UnsupportedError(f"{where}: {hidden} channels do not split into {heads} heads evenly")
    biases: set[str] = set()
    if arch == "qwen2":
        biases.update(ATTENTION_LINEARS)
    elif found.get("attention_bias"):
        biases.update(ATTENTION_LINEARS, ("attn_output",))
    if found.get("mlp_bias"):
        biases.update(("ffn_gate", "ffn_up", "ffn_down"))
    theta = found.get("rope_theta") or (found.get("rope_parameters") or {}).get("rope_theta") or 10000.0
    return ModelConfig(
        architecture=arch,
        layers=_integer(found, "num_hidden_layers", where),
        hidden=hidden,
        heads=heads,
        kv_heads=heads
        if found.get("num_key_value_heads") is None
        else _integer(found, "num_key_value_heads", where),
        head_dim=hidden // heads if found.get("head_dim") is None else _integer(found, "head_dim", where),
        ffn=_integer(found, "intermediate_size", where),
        vocab=_integer(found, "vocab_size", where),
        context=_integer(found, "max_position_embeddings", where),
        rope_theta=_number({"rope_theta": theta}, "rope_theta", where),
        eps=_number(found, "rms_norm_eps", where),
        tied=bool(found.get("tie_word_embeddings", False)),
        biases=frozenset(biases),
        qk_norm=arch == "qwen3",
    )
