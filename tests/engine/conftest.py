"""A runner that keeps a ledger instead of K and V, and tiny models, for the engine's tests."""

import functools
import hashlib

import pytest

from crucible import device
from crucible.engine.events import Result
from crucible.engine.job import Job
from crucible.engine.request import Checked
from crucible.engine.runner import Outcome, Sampling
from crucible.gates.engine import generated_alone
from crucible.model import synthetic
from crucible.model.config import ModelConfig
from crucible.model.model import Model
from crucible.model.tokenizer import ByteTokenizer, StreamDecoder
from crucible.sampling.params import SamplingParams

VOCAB = 256


def chain(before: bytes, token: int) -> bytes:
    """Stands for K and V of a position: depends on the token and on everything before it."""
    return hashlib.blake2b(before + bytes([token]), digest_size=8).digest()


def choose(history: bytes, sampling: Sampling) -> int:
    """Stands for logits and sampler: a token by the history, the seed and the number of the draw."""
    key = f"{sampling.params.seed},{sampling.draw}".encode()
    return hashlib.blake2b(history + key, digest_size=1).digest()[0]


def alone(prompt: list[int], params: SamplingParams, count: int) -> list[int]:
    """The tokens that a request gets by itself."""
    history, made = b"", []
    for token in prompt:
        history = chain(history, token)
    for draw in range(count):
        made.append(choose(history, Sampling(params, draw)))
        history = chain(history, made[-1])
    return made


class Ledger:
    """A Runner whose pages hold (position, token, chain); it refuses every read and write that is not right.

    A free page is wiped, so that a stale read shows; a shared one must not be written.
    """

    namespace = "ledger"

    def __init__(self, pages: int):
        self.page_order = list(range(pages))
        self.pages = [[None] * 16 for _ in range(pages)]
        self.tables: dict[int, tuple[list[int], int]] = {}
        self.steps: list[list] = []

    def set_pages(self, slot, pages, shared, stored):
        assert slot not in self.tables, "the slot is taken"
        self.tables[slot] = (list(pages), shared)
        for index, page in enumerate(pages[shared:], shared):
            for at in range(16):
                if 16 * index + at >= stored:
                    self.pages[page][at] = None

    def share_pages(self, slot, pages, shared):
        for old, new in zip(self.tables[slot][0], pages, strict=True):
            assert self.pages[old] == self.pages[new], "a page was exchanged for another content"
        assert all(None not in self.pages[page] for page in pages[:shared]), "a shared page is not full"
        self.tables[slot] = (list(pages), shared)

    def add_page(self, slot, index, page):
        assert len(self.tables[slot][0]) == index
        self.tables[slot][0].append(page)
        self.pages[page] = [None] * 16

    def clear(self, slot, pages, shared):
        held, was_shared = self.tables.pop(slot)
        assert held == list(pages) and was_shared == shared
        for page in pages[shared:]:
            self.pages[page] = [None] * 16

    def copy_page(self, source, target):
        self.pages[target] = list(self.pages[source])

    def run(self, parts):
        self.steps.append(list(parts))
        writers: dict[int, int] = {}
        for slot, (pages, shared) in self.tables.items():
            for page in pages[shared:]:
                assert writers.setdefault(page, slot) == slot, "two requests may write a page"
        for pages, shared in self.tables.values():
            assert not writers.keys() & set(pages[:shared]), "a shared page has a writer"
        outcomes = []
        for part in parts:
            pages, shared = self.tables[part.slot]
            history = self._history(pages, part.start)
            for position, token in enumerate(part.ids, part.start):
                assert position >= 16 * shared, "a shared page is written"
                history = chain(history, token)
                self.pages[pages[position // 16]][position % 16] = (position, token, history)
            if part.sampling is not None:
                outcomes.append(Outcome(choose(history, part.sampling)))
        return outcomes

    def _history(self, pages, length):
        history = b""
        for position in range(length):
            entry = self.pages[pages[position // 16]][position % 16]
            assert entry is not None, f"position {position} was never stored"
            history = chain(history, entry[1])
            assert entry == (position, entry[1], history), "a page of another text"
        return history

    def settle(self):
        assert not self.tables, "something runs"

    def prepare(self):
        assert not self.tables, "something runs"
        return False

    def kv_digests(self, slot, length):
        return "k", self._history(self.tables[slot][0], length).hex()


@pytest.fixture
def ledger():
    """The Ledger class."""
    return Ledger


@pytest.fixture
def make_job():
    """make_job(id, prompt, max_tokens, **fields) -> Job with byte tokens and nothing that stops it."""

    def make(id, prompt, max_tokens, seed=None, stop_tokens=(), stop_strings=()):
        params = SamplingParams(1.0, seed=id if seed is None else seed)
        request = Checked(
            prompt, params, max_tokens, frozenset(stop_tokens), tuple(stop_strings), None, True, True
        )
        return Job(id, request, StreamDecoder(ByteTokenizer(300)))

    return make


@pytest.fixture
def expected():
    """expected(prompt, params, count): the tokens of the request alone."""
    return alone


@pytest.fixture(scope="session")
def make_model():
    """make_model(mode, **config changes) -> a tiny random model, cached."""

    @functools.cache
    def make(mode: str = "f32", **changes) -> Model:
        sizes = {
            "architecture": "llama", "layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32,
            "ffn": 96, "vocab": 300, "context": 192, "rope_theta": 10000.0, "eps": 1e-5, "tied": False,
        }  # fmt: skip
        config = ModelConfig(**{**sizes, **changes})
        return Model.from_checkpoint(synthetic.open_synthetic(config, 7, "tiny"), device.get("cpu"), mode)

    return make


@pytest.fixture(scope="session")
def model(make_model) -> Model:
    """A tiny untied f32 model."""
    return make_model()


def _same(result: Result, judge, count: int | None = None) -> None:
    """The result is the judge's, or its first `count` tokens where the request was cancelled."""
    count = len(judge.tokens) if count is None else count
    assert result.tokens == judge.tokens[:count]
    assert result.logits_digests in (None, judge.logits_digests[:count])
    if result.finish_reason != "cancelled":
        assert (result.text, result.finish_reason) == (judge.text, judge.finish_reason)
        assert result.random_state == judge.random_state
        assert (result.k_digest, result.v_digest) in ((None, None), (judge.k_digest, judge.v_digest))


@pytest.fixture(scope="session")
def solo():
    """solo(model, request) -> Generation, the judge: the model's own generation of the request."""
    return generated_alone


@pytest.fixture(scope="session")
def same():
    """same(result, judge, count=None): hold a result to the judge's."""
    return _same
