"""Tokenizers: text survives the round trip, streams never hold half a character, damage is named."""

import sys
import threading

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crucible.errors import CrucibleError, InputError, UnsupportedError
from crucible.model.bpe import from_gguf, from_json
from crucible.model.gguf import open_gguf
from crucible.model.tokenizer import ByteTokenizer, StreamDecoder, decode

TEXT = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x1FFFF), max_size=60)


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2_file):
    return open_gguf(smollm2_file).load_tokenizer()


@pytest.fixture(scope="module")
def unknown_bytes(smollm2_tokenizer) -> set[int]:
    known = {smollm2_tokenizer.token_bytes(token) for token in range(smollm2_tokenizer.vocab)}
    return {byte for byte in range(256) if bytes([byte]) not in known}


def without_control(text: str) -> bool:
    return "<" not in text


def test_the_vector_prompt_has_the_published_ids(smollm2_tokenizer, chat_vector):
    assert smollm2_tokenizer.encode(str(chat_vector["text"])) == chat_vector["ids"].tolist()


@settings(max_examples=100, deadline=None)
@given(text=TEXT.filter(without_control))
def test_text_of_known_bytes_survives_the_round_trip(smollm2_tokenizer, unknown_bytes, text):
    # SmolLM2's vocabulary lacks 21 bytes (some control characters, lead bytes of unassigned planes).
    assume(not any(byte in unknown_bytes for byte in text.encode()))
    assert decode(smollm2_tokenizer, smollm2_tokenizer.encode(text)) == text


@given(text=TEXT.filter(without_control))
def test_bytes_survive_the_round_trip(text):
    tokenizer = ByteTokenizer(32000)
    assert decode(tokenizer, tokenizer.encode(text)) == text


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(0, 49151), max_size=40))
def test_streamed_pieces_join_to_the_whole_text_whatever_the_tokens(smollm2_tokenizer, tokens):
    stream = StreamDecoder(smollm2_tokenizer)
    pieces = [stream.push(token) for token in tokens] + [stream.finish()]
    assert "".join(pieces) == decode(smollm2_tokenizer, tokens)


def test_a_stream_holds_a_character_back_until_it_is_whole():
    tokenizer = ByteTokenizer(300)
    stream = StreamDecoder(tokenizer)
    pieces = [stream.push(token) for token in "aé🙂".encode()]
    assert pieces == ["a", "", "é", "", "", "", "🙂"]
    assert stream.push(0xF0) == "" and stream.finish() == "\ufffd"


def test_control_tokens_are_recognised_and_add_no_text(smollm2_tokenizer):
    ids = smollm2_tokenizer.encode("<|im_start|>user\nHi<|im_end|>")
    assert ids[0] == 1 and ids[-1] == 2
    assert decode(smollm2_tokenizer, ids) == "user\nHi"
    tokenizer = ByteTokenizer(300)
    assert tokenizer.encode("<|user|>é<|end|>") == [258, 0xC3, 0xA9, 260]
    assert decode(tokenizer, [256, 104, 260]) == "h"


def test_every_synthetic_id_reads_as_its_own_text():
    tokenizer = ByteTokenizer(32000)
    words = [tokenizer.token_bytes(token) for token in range(261, 32000)]
    assert len(set(words)) == len(words) and all(word.startswith(b" ") for word in words)
    assert [tokenizer.name(token) for token in (65, 260)] == ["A", "<|end|>"]
    with pytest.raises(InputError, match="261"):
        ByteTokenizer(260)


def test_names_of_ids_without_an_entry_are_readable(smollm2_tokenizer):
    assert smollm2_tokenizer.name(0) == "<|endoftext|>"
    assert smollm2_tokenizer.token_bytes(60000) == b"" and "60000" in smollm2_tokenizer.name(60000)


GGUF = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.pre": "deepseek-llm"}, "deepseek-llm"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["ab"]}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a c"]}, "cannot be built"),
        ({"tokenizer.ggml.token_type": [1]}, "1 types"),
        ({"tokenizer.ggml.tokens": list("abcdefghijk")}, "11 tokens"),
    ],
)
def test_a_gguf_tokenizer_that_cannot_be_built_is_one_sentence(change, named):
    with pytest.raises(CrucibleError) as refused:
        from_gguf({**GGUF, **change}, 10)
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_a_tokenizer_file_that_cannot_be_read_is_one_sentence(tmp_path, make_tiny, write_checkpoint):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(InputError, match="cannot read"):
        from_json(path, 300)
    for text in ("", "{", '{"version": "1.0"}', "[]"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"tokenizer\.json"):
            from_json(path, 300)
    write_checkpoint(tmp_path, make_tiny().config)
    with pytest.raises(InputError, match="257 tokens"):
        from_json(path, 200)
    path.write_text(
        path.read_text().replace(
            '"decoder":{"type":"ByteLevel"', '"decoder":{"type":"WordPiece","prefix":"#","cleanup":true,"x"'
        )
    )
    with pytest.raises((UnsupportedError, InputError)):
        from_json(path, 300)


def test_byte_fallback_tokens_are_bytes_and_spaces(tmp_path):
    from tokenizers import Tokenizer, decoders, models

    vocab = {"<unk>": 0, "\u2581hi": 1, "<0xC3>": 2, "<0xA9>": 3}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    path = tmp_path / "tokenizer.json"
    inner.save(str(path))
    tokenizer = from_json(path, 10)
    assert decode(tokenizer, [1, 2, 3]) == " hié"


def other_threads_run(work) -> bool:
    """Whether another thread gets on while `work` runs, which nothing but `work` itself lets it."""
    ready, go, ran = threading.Event(), threading.Lock(), []
    go.acquire()
    waiting = threading.Thread(target=lambda: (ready.set(), go.acquire(), ran.append(True)))
    before = sys.getswitchinterval()
    waiting.start()
    ready.wait()
    sys.setswitchinterval(1000)
    try:
        go.release()
        work()
        return bool(ran)
    finally:
        sys.setswitchinterval(before)
        waiting.join()


@pytest.mark.parametrize("name", ["encode", "encode_letters"])
def test_other_threads_run_while_a_long_text_is_encoded(smollm2_tokenizer, name):
    encode, text = getattr(smollm2_tokenizer, name), "The quick brown fox. " * 10_000
    encode("made ready")
    assert other_threads_run(lambda: encode(text))
    assert not other_threads_run(lambda: sum(range(1_000_000)))


def test_a_long_text_has_the_tokens_of_its_parts(smollm2_tokenizer):
    part = "<|im_start|>caf\u00e9 12  \u4f60\u597d<|im_end|>"
    for encode in (smollm2_tokenizer.encode, smollm2_tokenizer.encode_letters):
        short = encode("\n" + part)
        assert encode(("\n" + part) * 400) == short * 400


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200) | st.text("<|>im_endstar \n\x04", max_size=300))
def test_no_text_has_fewer_tokens_than_are_told_at_once(smollm2_tokenizer, text):
    for tokenizer in (smollm2_tokenizer, ByteTokenizer(300)):
        least = tokenizer.at_least(text)
        assert least <= min(len(tokenizer.encode(text)), len(tokenizer.encode_letters(text)))


def test_the_longest_token_and_lost_bytes_are_what_is_told(smollm2_tokenizer, unknown_bytes):
    names = [smollm2_tokenizer.token_bytes(token) for token in range(smollm2_tokenizer.vocab)]
    longest = max(names, key=len).decode()
    assert smollm2_tokenizer.at_least(longest * 7) == 7
    lost = chr(min(unknown_bytes)) * 5000
    assert smollm2_tokenizer.at_least(lost) == len(smollm2_tokenizer.encode(lost)) == 0
    assert ByteTokenizer(300).at_least("<|assistant|>" * 9) == 9


@pytest.mark.parametrize("change", ["normalizer", "stripping", "removing", "truncation"])
def test_nothing_is_told_of_a_tokenizer_that_takes_text_away(smollm2_file, change):
    from tokenizers import AddedToken, normalizers, pre_tokenizers

    tokenizer = open_gguf(smollm2_file).load_tokenizer()
    inner = tokenizer._inner
    match change:
        case "normalizer":
            inner.normalizer = normalizers.NFC()
        case "stripping":
            inner.add_special_tokens([AddedToken("<|pad|>", lstrip=True)])
        case "removing":
            steps = [pre_tokenizers.Split(" ", "removed"), inner.pre_tokenizer]
            inner.pre_tokenizer = pre_tokenizers.Sequence(steps)
        case "truncation":
            inner.enable_truncation(5)
    assert tokenizer.at_least("word " * 9000) == 0
