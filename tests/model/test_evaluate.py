"""The held-out text and its protocols: where it comes from, what is scored from what, equal bits."""

import ast
import importlib.metadata
import math
from pathlib import Path

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.kv.slices import Slice
from crucible.model import evaluate, heldout
from crucible.model.evaluate import PREFILL, PROTOCOLS, record_of, score, targets
from crucible.numerics.digest import digest
from crucible.sampling.sample import logprobs


@pytest.fixture
def model(make_tiny):
    return make_tiny(tied=False, context=1100)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return np.random.default_rng(5).integers(0, 300, 16384).tolist()


def test_the_text_is_what_the_pinned_numpy_says():
    if importlib.metadata.version("numpy") != heldout.NUMPY:
        pytest.skip(f"needs numpy {heldout.NUMPY}")
    assert heldout.extract(Path(np.__file__).parent) == heldout.text()


def test_docstrings_come_in_the_order_of_the_file_and_only_they():
    source = (
        '"""  Module.\n    More.\n    """\nx = """no docstring"""\n'
        'class A:\n    """A."""\n    def f(self):\n        """f."""\n        def g():\n            "g."\n'
        'if x:\n    async def h():\n        """h."""\ndef silent():\n    x = 1\n'
    )
    assert list(heldout.docstrings(source)) == ["Module.\nMore.", "A.", "f.", "g.", "h."]
    assert ast.parse(source)


def test_files_are_read_in_sorted_order_and_tests_are_left_out(tmp_path):
    for name, text in {"b.py": "'b'", "a/z.py": "'az'", "a.py": "'a'", "a/tests/t.py": "'no'"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert heldout.extract(tmp_path) == "a\n\naz\n\nb\n"  # "a.py" < "a/z.py": '.' sorts before '/'


def test_a_damaged_text_is_refused(monkeypatch, tmp_path):
    for content, says in ((b"", "cannot be read"), (heldout.lzma.compress(b"other"), "sha256")):
        (tmp_path / "x.xz").write_bytes(content)
        monkeypatch.setattr(heldout, "FILE", tmp_path / "x.xz")
        heldout.text.cache_clear()
        with pytest.raises(InputError, match=says):
            heldout.text()
    heldout.text.cache_clear()


def test_the_protocols_score_the_stated_targets():
    assert [targets(p) for p in PROTOCOLS] == [1024, 31, 63, 17]
    assert PREFILL == {32: 1024, 256: 16384, 941: 16384}


def test_decode_scores_every_next_token_with_the_bits_of_one_prefill(model, ids):
    found = score(model, ids, "decode")
    cache = model.new_cache(64)
    cache.reserve(0, 1024)
    logits = model.transformer.forward(ids[:1024], [Slice(0, 0, 1024)], cache, rows=range(1024))
    assert (found.scored, found.fed, found.digest) == (1024, 1024, digest(logits))
    each = [-logprobs(model.device, row)[target] for row, target in zip(logits, ids[1:1025], strict=True)]
    assert found.cross_entropy == sum(map(float, each)) / 1024
    assert found.perplexity == math.exp(found.cross_entropy) and found.elements == 1024 * 300


@pytest.mark.parametrize("protocol", ["prefill-32", "prefill-941"])
def test_prefill_scores_the_last_of_each_window_from_the_window_alone(model, ids, protocol):
    found = score(model, ids, protocol)
    context = int(protocol.removeprefix("prefill-"))
    total = 0.0
    for first in range(0, (context + 1) * targets(protocol), context + 1):
        cache = model.new_cache(64)
        cache.reserve(0, context)
        window = ids[first : first + context]
        (logits,) = model.transformer.forward(window, [Slice(0, 0, context)], cache)
        total -= float(logprobs(model.device, logits)[ids[first + context]])
    assert found.cross_entropy == total / targets(protocol)
    assert (found.scored, found.fed) == (targets(protocol), targets(protocol) * context)


@pytest.mark.parametrize("mode", ["f32", "int8"])
def test_reference_and_exact_attention_give_equal_bits_and_online_is_seen(make_tiny, ids, mode):
    model = make_tiny(mode, tied=False, context=1100, head_dim=64)
    exact, reference, online = (
        score(model, ids, "prefill-256", name) for name in ("exact", "reference", "online-k32")
    )
    assert (exact.digest, exact.cross_entropy) == (reference.digest, reference.cross_entropy)
    assert online.digest != exact.digest
    assert record_of(model, "random", "0" * 64, [reference, exact]).verdict == "pass"
    assert record_of(model, "random", "0" * 64, [reference, online]).verdict == "fail"


def test_what_cannot_be_scored_is_one_sentence(model, make_tiny, ids):
    with pytest.raises(InputError, match="1025 tokens, the text has 1024"):
        score(model, ids[:1024], "decode")
    with pytest.raises(InputError, match="needs a context of 941, tiny has 128"):
        score(make_tiny(tied=False), ids, "prefill-941")
    with pytest.raises(InputError, match="prefill-7"):
        score(model, ids, "prefill-7")


def test_the_log_probability_is_taken_on_the_host_whatever_the_device(model):
    logits = np.linspace(-3, 4, 300, dtype=np.float32)
    assert evaluate.surprise(model, logits, 7) == -float(logprobs(model.device, logits)[7])
