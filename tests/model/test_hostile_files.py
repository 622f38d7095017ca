"""Files, paths and variables that lie: one short sentence, never a hang or a silent acceptance."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from crucible.device import cache, cpu, host
from crucible.errors import CrucibleError, InputError, UnavailableError
from crucible.gates import vectors
from crucible.model.bpe import from_gguf
from crucible.model.model import Model, open_checkpoint
from crucible.model.safetensors import hf_name, open_safetensors


def refused(call, kind=CrucibleError) -> str:
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    return text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *[({"architectures": value}, "architectures") for value in (True, 5, {}, [[]])],
        *[({key: 5}, key) for key in ("rope_scaling", "rope_parameters", "quantization_config")],
        *[({key: []}, key) for key in ("rope_scaling", "rope_parameters", "quantization_config")],
        *[({"rope_theta": value}, "rope_theta") for value in ("", [], 10**400, False)],
        *[({"rope_theta": value}, "at least 1") for value in (0, 0.5, 5e-324)],
        ({"layer_types": 5}, "layer_types"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"rms_norm_eps": 1e39}, "float32"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"attention_bias": "no"}, "attention_bias"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}}, "full_attention"),
        ({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ({"rope_scaling": {"rope_type": "default", "low_freq_factor": 2.0}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "contradict"),
    ],
)
def test_a_config_key_that_lies_is_refused_by_name(folder, change, named):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert named in refused(lambda: open_safetensors(folder))


def test_a_config_key_that_is_there_twice_is_refused(folder):
    path = folder / "config.json"
    path.write_text(path.read_text()[:-1] + ', "rope_theta": 5.0}')
    assert "twice" in refused(lambda: open_safetensors(folder))


OPTIONAL = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja")
FILES = ("config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", *OPTIONAL)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda p: os.symlink("nowhere", p)])
def test_only_a_regular_file_is_read(folder, name, make):
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    assert name in refused(lambda: open_safetensors(folder).load_tokenizer(), InputError)


def test_a_fifo_is_no_model_and_no_vector_file(tmp_path):
    os.mkfifo(tmp_path / "f")
    assert "regular" in refused(lambda: open_checkpoint(tmp_path / "f"), InputError)
    assert "regular" in refused(lambda: vectors.read(tmp_path / "f"), InputError)


@pytest.mark.parametrize("path", ["x" * 5000, "~nosuchuser/x", "a\0b", "\ud800", "", None, 5, b"/tmp", []])
def test_a_name_that_no_model_has_is_one_sentence(path):
    refused(lambda: Model.load(path), InputError)


@pytest.mark.parametrize("text", [b"\xff", b'{"chat_template": [{"name": [1]}]}', b'{"chat_template": 5}'])
def test_a_chat_template_that_is_no_text_is_one_sentence(folder, text):
    name = "chat_template.jinja" if text == b"\xff" else "tokenizer_config.json"
    (folder / name).write_bytes(text)
    refused(lambda: open_safetensors(folder), InputError)


def rewrite(folder, edit=lambda header: None, extra=b"", more=b""):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()[:-1] + more + b"}"
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :] + extra)


Q, OUTPUT = (hf_name(f"blk.0.{kind}.weight") for kind in ("attn_q", "attn_output"))


@pytest.mark.parametrize(
    "change",
    [
        *[{"data_offsets": value} for value in ([1e400] * 2, ["0", "16384"], [0.0, 16384.0], [0], None)],
        *[{"dtype": value} for value in ([1], {}, None)],
        *[{"shape": value} for value in ([2**63] * 100_000, [64.0, 64], [True, 4096], [[64, 64]])],
    ],
)
def test_a_tensor_entry_of_the_wrong_types_is_malformed(folder, change):
    rewrite(folder, lambda header: header[Q].update(change))
    assert "malformed" in refused(lambda: open_safetensors(folder), InputError)


def test_tensors_must_fill_their_file_once(folder):
    pristine = (folder / "model.safetensors").read_bytes()
    rewrite(folder, extra=b"x" * 100)
    assert "last 100 bytes" in refused(lambda: open_safetensors(folder), InputError)
    (folder / "model.safetensors").write_bytes(pristine)
    rewrite(folder, lambda h: h[Q].update(data_offsets=h[OUTPUT]["data_offsets"]))
    refused(lambda: open_safetensors(folder), InputError)
    (folder / "model.safetensors").write_bytes(pristine)
    rewrite(folder, more=b', "x": 1, "x": 2')
    assert "twice" in refused(lambda: open_safetensors(folder), InputError)


@pytest.mark.parametrize(
    "change",
    [
        *[{key: 7} for key in ("tokens", "merges", "token_type", "model", "pre", "add_bos_token")],
        {"tokens": np.arange(3)},
        {"merges": np.arange(3)},
        {"pre": np.arange(2)},
        {"token_type": ["x"] * 3},
        *[{"add_bos_token": True, "bos_token_id": value} for value in (np.arange(2), -1, 10, "x")],
    ],
)
def test_gguf_tokenizer_keys_of_the_wrong_type_are_one_sentence(change):
    good = {"model": "gpt2", "tokens": ["a", "b", "ab"], "merges": ["a b"]}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in {**good, **change}.items()}
    assert "tokenizer.ggml" in refused(lambda: from_gguf(metadata, 10))


def test_a_model_in_memory_does_not_follow_its_file(folder):
    model = Model.load(folder, "cpu")
    before = model.transformer.weights.embedding.rows.copy()
    path = folder / "model.safetensors"
    with open(path, "r+b") as handle:
        handle.write(b"\0" * path.stat().st_size)
    assert before.any()
    np.testing.assert_array_equal(before, model.transformer.weights.embedding.rows)


def test_a_damaged_product_is_built_again_and_an_empty_one_never_published(tmp_path, monkeypatch):
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path))
    path = cache.build_once("x", "y.so", lambda out: out.write_bytes(b"good"))
    for damage in (b"", b"go", b"evil"):
        path.write_bytes(damage)
        assert cache.build_once("x", "y.so", lambda out: out.write_bytes(b"good")).read_bytes() == b"good"
    assert cache.build_once("x", "y.so", lambda out: pytest.fail("built twice")) == path
    refused(lambda: cache.build_once("x", "z.so", lambda out: None), UnavailableError)
    assert not (tmp_path / "x" / "z.so").exists()


@pytest.mark.parametrize("command", ["'", "true"])
def test_a_compiler_that_is_none_is_one_sentence(tmp_path, monkeypatch, command):
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", command)
    host.compiler.cache_clear()
    try:
        refused(lambda: cpu.build("plain"))
    finally:
        host.compiler.cache_clear()
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("value", ["²", "٣", "9" * 5000, "0", ""])
def test_threads_are_ascii_digits(monkeypatch, value):
    monkeypatch.setenv("CRUCIBLE_THREADS", value)
    assert "CRUCIBLE_THREADS" in refused(cpu.default_threads, InputError)


def test_gguf_keys_twice_and_tensors_over_one_another_are_refused(tmp_path):
    import gguf

    from crucible.model.gguf import open_container

    def write(second: str):
        writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
        writer.add_uint32("llama.aa", 1)
        writer.add_uint32(second, 2)
        writer.add_array("scores", [1.0] * 50)
        for name in ("one", "two"):
            writer.add_tensor(name, np.ones((2, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (tmp_path / "t.gguf").read_bytes()

    def opened(data: bytes):
        (tmp_path / "t.gguf").write_bytes(data)
        return open_container(tmp_path / "t.gguf")

    good = write("llama.ab")
    assert isinstance(opened(good).metadata["scores"], np.ndarray)  # 4 bytes a number, not 32
    assert "twice" in refused(lambda: opened(good.replace(b"llama.ab", b"llama.aa")), InputError)
    at = good.index(b"two") + 3 + 4 + 16 + 4  # rank, two extents, type
    assert "overlaps" in refused(lambda: opened(good[:at] + bytes(8) + good[at + 8 :]), InputError)


def test_a_terminal_without_a_character_gets_its_escape():
    code = "from crucible.cli import main; main.COMMANDS = ()\n"
    code += "main.app = lambda: print('caf\\u00e9'); main.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "caf\\xe9\n"), done.stderr
