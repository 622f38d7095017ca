"""GGUF files: exact weights, and one clear sentence for every kind of damage."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crucible import device
from crucible.errors import CrucibleError, InputError, UnsupportedError
from crucible.linear.weights import quantize_weight
from crucible.model import synthetic
from crucible.model.gguf import open_container, open_gguf, unpermute
from crucible.numerics.digest import digest


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `unpermute`, as the converter to GGUF writes llama's Q and K."""
    pairs = rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2)
    return np.ascontiguousarray(pairs).reshape(rows.shape)


def write_gguf(path, config, encode=None, drop=(), change=None):
    """A tiny GGUF file by the gguf library's writer; `encode` (name, array) -> (raw, quantization type)."""
    import gguf

    arch = config.architecture
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_vocab_size(config.vocab)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.eps)
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
    for name in config.tensor_shapes():
        if name in drop:
            continue
        array = synthetic.synthetic_tensor(config, name, 11)
        kind = name.split(".")[2] if name.startswith("blk.") else name
        array = permute(array, heads[kind]) if kind in heads else array
        array = change(name, array) if change else array
        raw, quantization = encode(name, array) if encode else (array, None)
        writer.add_tensor(name, raw, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny_config(make_tiny):
    return make_tiny().config


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory, tiny_config) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_config).read_bytes()


def test_smollm2_weights_have_the_published_digests(smollm2_file, chat_vector):
    checkpoint = open_gguf(smollm2_file)
    for name, expected in zip(chat_vector["weight_names"], chat_vector["weight_digests"], strict=True):
        assert digest(checkpoint.read_tensor(str(name))) == expected, name


def test_smollm2_int8_weights_have_the_published_digests(smollm2_file, chat_vector):
    checkpoint, cpu = open_gguf(smollm2_file), device.get("cpu")
    expected = zip(
        chat_vector["weight_names"][:5],
        chat_vector["int8_q_digests"],
        chat_vector["int8_s_digests"],
        strict=True,
    )
    for name, q_digest, s_digest in expected:
        q, scale = quantize_weight(cpu, checkpoint.read_tensor(str(name)))
        assert hashlib.blake2b(q.tobytes(), digest_size=16).hexdigest() == q_digest, name
        assert digest(scale) == s_digest, name


def test_unpermute_undoes_the_converter():
    rng = np.random.default_rng(3)
    for heads, dim in ((1, 32), (3, 64), (8, 128)):
        rows = rng.standard_normal((heads * dim, 5)).astype(np.float32)
        np.testing.assert_array_equal(unpermute(permute(rows, heads), heads), rows)
        bias = np.arange(heads * dim, dtype=np.float32)
        np.testing.assert_array_equal(unpermute(permute(bias, heads), heads), bias)


def test_unpermute_places_row_pairs():
    # The file interleaves the rotation pair (0, D/2): rows 0, 2, 1, 3 of a head with D = 4.
    np.testing.assert_array_equal(unpermute(np.float32([0, 2, 1, 3]), 1), [0, 1, 2, 3])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_every_covered_type_reads_back_the_bits_that_another_library_gives(tmp_path, make_tiny, kind):
    import gguf
    from gguf.quants import dequantize, quantize

    # Rows of a multiple of 32, so that every tensor but the norms takes the type.
    config = make_tiny().config
    quantization = gguf.GGMLQuantizationType[kind]
    wanted = {}

    def encode(name, array):
        if array.ndim == 1:
            wanted[name] = array
            return array, None
        raw = quantize(array, quantization)
        wanted[name] = np.ascontiguousarray(dequantize(raw, quantization), np.float32)
        return raw, quantization

    container = open_container(write_gguf(tmp_path / "t.gguf", config, encode))
    for name, array in wanted.items():
        found = container.read(name)
        assert found.dtype == np.float32 and found.any(), name
        np.testing.assert_array_equal(found.view(np.uint32), array.view(np.uint32), name)


def test_a_q4_1_block_is_low_nibbles_then_high_nibbles():
    from crucible.model.dequantize import ENCODINGS

    d, m = np.float16(0.1), np.float16(-0.7)
    nibbles = np.arange(16, dtype=np.uint8) | (np.arange(15, -1, -1, dtype=np.uint8) << 4)
    raw = np.concatenate([np.float16([d, m]).view(np.uint8), nibbles])
    q = np.concatenate([np.arange(16), np.arange(15, -1, -1)]).astype(np.float32)
    expected = np.float32(d) * q + np.float32(m)
    np.testing.assert_array_equal(ENCODINGS[3].widen(raw, (32,)).view(np.uint32), expected.view(np.uint32))


def test_q_and_k_rows_come_back_in_half_split_order(tmp_path, tiny_config):
    checkpoint = open_gguf(write_gguf(tmp_path / "t.gguf", tiny_config))
    for kind in ("attn_q", "attn_k", "attn_v"):
        name = f"blk.1.{kind}.weight"
        np.testing.assert_array_equal(
            checkpoint.read_tensor(name), synthetic.synthetic_tensor(tiny_config, name, 11)
        )


def refused(path, kind=CrucibleError) -> str:
    with pytest.raises(kind) as caught:
        open_gguf(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_cut_at_any_offset_is_one_sentence(tmp_path, tiny_bytes):
    path = tmp_path / "cut.gguf"
    # Densely through the directory, then through the data to the last byte.
    for size in [*range(0, 1500, 3), *range(1500, len(tiny_bytes), 4999), len(tiny_bytes) - 1]:
        path.write_bytes(tiny_bytes[:size])
        message = refused(path, InputError)
        assert "truncated" in message or "empty" in message or "corrupt" in message, (size, message)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_changed_bytes_in_the_directory_never_crash(tmp_path_factory, tiny_bytes, data):
    damaged = bytearray(tiny_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 2500))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        checkpoint = open_gguf(path)
    except CrucibleError as error:
        assert "\n" not in str(error).replace("\\n", "")
    else:
        checkpoint.read_tensor("output_norm.weight")


def test_wrong_magic_version_and_type_are_named(tmp_path, tiny_bytes):
    path = tmp_path / "t.gguf"
    path.write_bytes(b"PK\x03\x04" + tiny_bytes[4:])
    assert "not a GGUF file" in refused(path, InputError)
    path.write_bytes(tiny_bytes[:4] + (1).to_bytes(4, "little") + tiny_bytes[8:])
    assert "version 1" in refused(path, UnsupportedError)
    name = b"blk.0.ffn_down.weight"
    at = tiny_bytes.index(name) + len(name) + 4 + 16  # rank, two extents, then the type
    path.write_bytes(tiny_bytes[:at] + (12).to_bytes(4, "little") + tiny_bytes[at + 4 :])
    message = refused(path, UnsupportedError)
    assert "blk.0.ffn_down.weight" in message and "Q4_K" in message
    path.write_bytes(tiny_bytes[:at] + (9999).to_bytes(4, "little") + tiny_bytes[at + 4 :])
    assert "number 9999" in refused(path, UnsupportedError)


def test_missing_and_misshapen_tensors_are_named(tmp_path, tiny_config):
    name = "blk.1.attn_v.weight"
    assert name in refused(write_gguf(tmp_path / "a.gguf", tiny_config, drop=(name,)), InputError)
    change = lambda n, a: a[:-1] if n == name else a  # noqa: E731
    assert name in refused(write_gguf(tmp_path / "b.gguf", tiny_config, change=change), InputError)
    rename = (
        write_gguf(tmp_path / "c.gguf", tiny_config).read_bytes().replace(b"blk.1.attn_v", b"blk.7.attn_v")
    )
    (tmp_path / "c.gguf").write_bytes(rename)
    assert "lacks the tensor blk.1.attn_v" in refused(tmp_path / "c.gguf", InputError)
    assert "cannot read" in refused(tmp_path / "absent.gguf", InputError)
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert "empty" in refused(tmp_path / "empty.gguf", InputError)


def test_a_damaged_layer_count_is_refused_before_it_costs_memory(tmp_path, tiny_bytes):
    key = b"llama.block_count"
    at = tiny_bytes.index(key) + len(key) + 4
    path = tmp_path / "t.gguf"
    path.write_bytes(tiny_bytes[:at] + b"\xff\xff\xff\x7f" + tiny_bytes[at + 4 :])
    assert "claims 2147483647 layers" in refused(path, InputError)


def test_an_unknown_architecture_is_named(tmp_path, tiny_bytes):
    path = tmp_path / "t.gguf"
    path.write_bytes(tiny_bytes.replace(b"llama", b"mamba"))
    assert "mamba" in refused(path, UnsupportedError)
