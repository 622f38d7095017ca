"""What version 1 does not cover is refused by name; what it covers is read exactly."""

import json

import numpy as np
import pytest

from crucible.errors import CrucibleError, InputError, UnsupportedError
from crucible.model.config import ModelConfig, from_gguf, from_hf

HF = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 256,
    "llama.vocab_size": 1000,
    "llama.context_length": 512,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 500000.0,
}


def test_gguf_and_hf_configs_of_one_model_are_equal():
    assert from_gguf(GGUF, ["token_embd.weight"]) == from_hf(HF)


def test_eps_is_the_float32_nearest():
    assert from_hf(HF).eps == float(np.float32(1e-5))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling = 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"head_dim": 48}, "head_dim 48"),
        ({"num_key_value_heads": 3}, "3 key/value heads"),
        ({"hidden_size": 130}, "130"),
        ({"num_attention_heads": [4, 2]}, "num_attention_heads"),
    ],
)
def test_a_feature_outside_version_1_is_refused_by_name(change, named):
    with pytest.raises(UnsupportedError, match=None) as refused:
        from_hf({**HF, **change})
    assert named in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "names", "named"),
    [
        ({"general.architecture": "gemma2"}, (), "gemma2"),
        ({"llama.rope.scaling.type": "yarn"}, (), "llama.rope.scaling.type"),
        ({"llama.rope.scaling.factor": 4.0}, (), "llama.rope.scaling.factor"),
        ({}, ("rope_freqs.weight",), "rope_freqs.weight"),
        ({"llama.expert_count": 8}, (), "llama.expert_count"),
        ({}, ("blk.0.ffn_gate_exps.weight",), "blk.0.ffn_gate_exps.weight"),
        ({"llama.attention.sliding_window": 4096}, (), "llama.attention.sliding_window"),
        ({"llama.attention.value_length": 64}, (), "llama.attention.value_length"),
        ({"llama.rope.dimension_count": 16}, (), "llama.rope.dimension_count"),
        ({"llama.attention.head_count": [4, 4]}, (), "llama.attention.head_count"),
        ({}, ("blk.0.attn_q.bias",), "attn_q"),
    ],
)
def test_a_gguf_key_or_tensor_outside_version_1_is_refused_by_name(change, names, named):
    with pytest.raises(UnsupportedError) as refused:
        from_gguf({**GGUF, **change}, names)
    assert named in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "key", [k for k in HF if k.startswith(("num_hidden", "hidden_size", "rms", "vocab"))]
)
def test_a_missing_key_is_named(key):
    with pytest.raises(InputError, match=key):
        from_hf({k: v for k, v in HF.items() if k != key})


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "rms_norm_eps", "rope_theta", "vocab_size"]
)
@pytest.mark.parametrize("value", ["x", -1, 0.5, True, [1], float("nan")])
def test_a_value_of_the_wrong_kind_is_one_sentence(key, value):
    try:
        config = from_hf({**HF, key: value})
    except CrucibleError as refused:
        assert "\n" not in str(refused)
    else:  # 0.5 and a whole theta are legal where a number is meant
        assert isinstance(config, ModelConfig) and key in ("rope_theta", "rms_norm_eps")


def test_default_rope_parameters_and_unused_window_are_read():
    found = {**HF, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    del found["rope_theta"]
    assert from_hf(found).rope_theta == 10000.0
    qwen = {
        **HF,
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": False,
        "sliding_window": 131072,
    }
    assert from_hf(json.loads(json.dumps(qwen))).biases == {"attn_q", "attn_k", "attn_v"}
