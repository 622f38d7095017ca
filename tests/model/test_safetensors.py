"""Hugging Face folders: weights widen exactly, shards join, damage is one clear sentence."""

import json

import numpy as np
import pytest

from crucible.errors import CrucibleError, InputError, UnsupportedError
from crucible.model.safetensors import hf_name, open_safetensors
from crucible.numerics.bits import assert_same_bits


def refused(folder, kind=CrucibleError) -> str:
    with pytest.raises(kind) as caught:
        open_safetensors(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_weights_widen_exactly(tmp_path, make_tiny, write_checkpoint, dtype, shards, architecture):
    kinds = {"attn_q", "attn_k", "attn_v"} if architecture == "qwen2" else set()
    config = make_tiny(
        architecture=architecture, biases=frozenset(kinds), qk_norm=architecture == "qwen3", tied=shards == 1
    ).config
    widened = write_checkpoint(tmp_path, config, dtype, shards)
    checkpoint = open_safetensors(tmp_path)
    assert checkpoint.config == config
    assert checkpoint.eos_ids == (299,)
    for name, expected in widened.items():
        assert_same_bits(expected, checkpoint.read_tensor(name), name)


def test_a_file_cut_at_any_offset_is_one_sentence(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in [*range(64), *range(64, len(whole), 1999), len(whole) - 1]:
        path.write_bytes(whole[:size])
        refused(folder, InputError)


@pytest.mark.parametrize("size", [0, 5, 40, -1])
def test_a_cut_config_is_one_sentence(folder, size):
    path = folder / "config.json"
    path.write_text(path.read_text()[:size])
    assert "config.json" in refused(folder, InputError)


def test_a_header_that_lies_is_refused(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    name = hf_name("blk.1.ffn_up.weight")
    for entry in (
        {"dtype": "F32", "shape": [96, 64], "data_offsets": [-8, 24568]},
        {"dtype": "F32", "shape": [96, 64], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-96, -64], "data_offsets": [0, 24576]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 24576]},
        {"shape": [96, 64]},
        [],
        None,
    ):
        text = json.dumps({**header, name: entry}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        assert name in refused(folder, InputError)
    text = json.dumps({**header, name: {**header[name], "dtype": "F8_E4M3"}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
    message = refused(folder, UnsupportedError)
    assert name in message and "F8_E4M3" in message
    for text in (b"[1]", b"{", b"\xff\xfe"):
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        assert "not a safetensors file" in refused(folder, InputError)


def test_missing_surplus_and_misshapen_tensors_are_named(folder):
    edit_config(folder, num_hidden_layers=3)
    assert "lacks the tensor model.layers.2.input_layernorm.weight" in refused(folder, InputError)
    edit_config(folder, num_hidden_layers=1)
    assert "has no place" in refused(folder, InputError)
    edit_config(folder, num_hidden_layers=2, intermediate_size=97)
    assert "mlp.gate_proj" in refused(folder, InputError)
    edit_config(folder, intermediate_size=96, num_hidden_layers=2**40)
    assert "layers" in refused(folder, InputError)


def test_an_index_that_lies_is_refused(tmp_path, make_tiny, write_checkpoint):
    write_checkpoint(tmp_path, make_tiny().config, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    first, other = sorted(set(weight_map.values()))
    moved = next(name for name, file in weight_map.items() if file == first)
    index.write_text(json.dumps({"weight_map": {**weight_map, moved: other}}))
    assert moved in refused(tmp_path, InputError)
    for lie in ({"weight_map": {moved: "../x"}}, {"weight_map": [1]}, {}):
        index.write_text(json.dumps(lie))
        assert "weight_map" in refused(tmp_path, InputError)
    index.write_text(json.dumps({"weight_map": {**weight_map, moved: "absent.safetensors"}}))
    assert "absent.safetensors" in refused(tmp_path, InputError)


def test_a_folder_without_weights_or_config_is_named(tmp_path):
    assert "config.json" in refused(tmp_path, InputError)
    (tmp_path / "config.json").write_text("{}")
    assert "model.safetensors" in refused(tmp_path, InputError)


def test_a_tied_checkpoint_may_carry_its_head(tmp_path, make_tiny, write_checkpoint):
    config = make_tiny(tied=False).config
    write_checkpoint(tmp_path, config)
    edit_config(tmp_path, tie_word_embeddings=True)
    assert open_safetensors(tmp_path).config.tied
    edit_config(tmp_path, tie_word_embeddings=None)
    assert not open_safetensors(tmp_path).config.tied


def test_generation_config_and_chat_template_are_read(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5, 900]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    checkpoint = open_safetensors(folder)
    assert checkpoint.eos_ids == (3, 5)  # 900 is outside the vocabulary
    assert checkpoint.chat_template == "{{ messages }}"
    assert np.asarray(checkpoint.load_tokenizer().encode("ab")).size == 2
