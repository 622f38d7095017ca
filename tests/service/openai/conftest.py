"""Clients of the OpenAI face: the official SDK, plain HTTP, and an engine whose tokens are written down."""

import contextlib
import threading

import httpx
import openai
import pytest

from crucible.engine.engine import Engine
from crucible.engine.events import Logprobs, TopLogprob
from crucible.engine.request import Request
from crucible.engine.runner import Outcome
from crucible.engine.scheduler import Limits
from crucible.model.tokenizer import ByteTokenizer
from crucible.service.app import create_app
from crucible.service.backend import LocalBackend
from crucible.service.state import Settings

MODEL = "tiny"


@pytest.fixture(scope="session")
def connected():
    """connected(server) -> OpenAI, which never tries again by itself; all share their connections."""
    with openai.DefaultHttpxClient() as shared:
        yield lambda server: openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60, http_client=shared
        )


@pytest.fixture(scope="session")
def client(tiny_server, connected):
    """The SDK's client of the shared server."""
    return connected(tiny_server)


@pytest.fixture(scope="session")
def http(tiny_server):
    """Plain HTTP to the shared server."""
    with httpx.Client(base_url=tiny_server.url, timeout=60) as made:
        yield made


@pytest.fixture(scope="session")
def complete(client):
    """complete(prompt, **fields) -> Completion, or the chunks with stream=True."""
    return lambda prompt="To be", **fields: client.completions.create(model=MODEL, prompt=prompt, **fields)


@pytest.fixture(scope="session")
def chat(client):
    """chat(text or messages, **fields) -> ChatCompletion, or the chunks with stream=True."""

    def ask(messages="Hello", **fields):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return client.chat.completions.create(model=MODEL, messages=messages, **fields)

    return ask


class Scripted:
    """A Runner that keeps nothing: the token of each draw is the next of `text`, then the end token.

    A prompt's last byte chooses the text where `texts` has it. `gate` holds every step while it is
    cleared, but for `steps` that are let through. A FAIL in the text fails the request there, a CRASH the
    engine.
    """

    FAIL, CRASH = "\x01", "\x02"
    namespace = "scripted"

    def __init__(self, text: str = "", texts: dict[str, str] | None = None, pages: int = 1024):
        self.page_order = list(range(pages))
        self.gate = threading.Event()
        self.gate.set()
        self.steps = threading.Semaphore(0)
        self.closed = False  # a test closed the engine, and its pages went with it
        self.text, self.texts = text, texts or {}
        self._chosen: dict[int, list[int]] = {}

    def run(self, parts):
        for _ in range(3000):
            if self.gate.is_set() or self.steps.acquire(timeout=0.01):
                break
        else:
            raise AssertionError("the gate stayed closed")
        return [self._next(part) for part in parts if part.sampling is not None]

    def _next(self, part):
        draw, count = part.sampling.draw, part.sampling.logprobs
        if draw == 0:
            text = self.texts.get(chr(part.ids[-1]), self.text)
            self._chosen[part.slot] = [*ByteTokenizer(300).encode(text), ByteTokenizer.control_id("<|end|>")]
        token = self._chosen[part.slot][draw]
        if token == ord(self.CRASH):
            raise RuntimeError("the device is gone")
        top = tuple(TopLogprob(65 + i, -1.5 if i == 0 else float("-inf")) for i in range(count or 0))
        return Outcome(
            token,
            logprobs=None if count is None else Logprobs(-0.5, top),
            error="its logits hold a NaN" if token == ord(self.FAIL) else None,
        )

    def set_pages(self, slot, pages, shared, stored): ...

    def share_pages(self, slot, pages, shared): ...

    def add_page(self, slot, index, page): ...

    def clear(self, slot, pages, shared): ...

    def copy_page(self, source, target): ...

    def settle(self): ...

    def prepare(self): ...


@contextlib.contextmanager
def scripted_server(tiny, tiny_server, limits: Limits, settings: Settings, **script):
    """(Server, Scripted); closed afterwards, with all pages back."""
    runner = Scripted(pages=limits.pages, **script)
    engine = Engine(tiny, limits, runner=runner)
    server = type(tiny_server)(create_app(LocalBackend(engine), settings), engine).start()
    try:
        yield server, runner
        runner.gate.set()
        if engine.stats().failure is None and not runner.closed:
            server.idle()
    finally:
        runner.gate.set()
        server.stop()
        engine.close()


@pytest.fixture
def scripted(tiny, tiny_server, connected):
    """scripted(text, texts={…}, limits=…, settings=…) -> (OpenAI, Server, Scripted) of the test's own."""
    with contextlib.ExitStack() as stack:

        def start(text="", texts=None, limits=None, settings=None):
            how = (limits or Limits(), settings or Settings(MODEL))
            made = stack.enter_context(scripted_server(tiny, tiny_server, *how, text=text, texts=texts))
            return connected(made[0]), *made

        yield start


@pytest.fixture(scope="session")
def _speaker(tiny, tiny_server):
    with scripted_server(tiny, tiny_server, Limits(), Settings(MODEL)) as made:
        yield made


@pytest.fixture
def saying(_speaker, connected):
    """saying(text, texts={…}) -> (OpenAI, Server, Scripted), the same engine for all tests, one byte a token.

    After the test the engine is held to be idle and healthy again.
    """
    server, runner = _speaker

    def say(text, texts=None):
        runner.text, runner.texts = text, texts or {}
        return connected(server), server, runner

    yield say
    runner.gate.set()
    server.service.draining = False
    server.idle()


# name -> fields of the SDK, of extra_body, and of the engine's request that means the same
SAMPLING = {
    "greedy": ({"temperature": 0}, {}, {"temperature": 0.0}),
    "defaults": ({"seed": 5}, {}, {"seed": 5}),
    "warm": ({"temperature": 1.7, "seed": 6}, {}, {"temperature": 1.7, "seed": 6}),
    "cold": ({"temperature": 0.3, "seed": 7}, {}, {"temperature": 0.3, "seed": 7}),
    "top-p": ({"top_p": 0.6, "seed": 8}, {}, {"top_p": 0.6, "seed": 8}),
    "top-k": ({"seed": 9}, {"top_k": 5}, {"top_k": 5, "seed": 9}),
    "gumbel": ({"seed": 11}, {"sampler": "gumbel-id"}, {"sampler": "gumbel-id", "seed": 11}),
    "largest-seed": ({"seed": 2**64 - 1}, {}, {"seed": 2**64 - 1}),
    "past-the-end": ({"seed": 12}, {"ignore_eos": True}, {"seed": 12, "ignore_eos": True}),
    "one-token": ({"seed": 13, "max_tokens": 1}, {}, {"seed": 13, "max_tokens": 1}),
}
PROMPTS = {
    "word": "To be",
    "unicode": "na\u00efve \u4f60\u597d \U0001f600",
    "long": "All the world's a stage, " * 20,
    "blanks": " \n\t",
}
COUNT = 10  # tokens that a request generates unless it says so


class Setting:
    """One way to sample: `fields` for the SDK, and the engine's request of the same meaning."""

    def __init__(self, name: str):
        fields, extra, self._meant = SAMPLING[name]
        self.fields = {"max_tokens": COUNT, **fields, "extra_body": {"return_token_ids": True, **extra}}

    def meant(self, prompt) -> Request:
        """The engine's request for a prompt."""
        return Request(prompt, **{"max_tokens": COUNT, "temperature": 1.0, **self._meant})


@pytest.fixture(scope="session", params=SAMPLING)
def setting(request) -> Setting:
    """Each way to sample."""
    return Setting(request.param)


@pytest.fixture(scope="session", params=PROMPTS)
def prompt(request) -> str:
    """Prompts of several kinds."""
    return PROMPTS[request.param]


@pytest.fixture(scope="session")
def default() -> Setting:
    """The way to sample of a client that gives a seed only."""
    return Setting("defaults")


@pytest.fixture(scope="session")
def gathered():
    """gathered(chunks) -> [choice by index]: text, logprobs (joined), token_ids, digests, finish_reason."""

    def gather(chunks) -> list[dict]:
        found: dict[int, dict] = {}
        for chunk in chunks:
            for choice in chunk.choices:
                one = found.setdefault(
                    choice.index,
                    {"text": "", "logprobs": [], "token_ids": [], "digests": [], "finish_reason": None},
                )
                text = choice.text if hasattr(choice, "text") else choice.delta.content
                assert one["finish_reason"] is None, "a choice goes on after its end"
                one["text"] += text or ""
                one["logprobs"] += [choice.logprobs.model_dump()] if choice.logprobs else []
                one["token_ids"] += getattr(choice, "token_ids", [])
                one["digests"] += getattr(choice, "logits_digests", [])
                one["finish_reason"] = choice.finish_reason
        return [found[index] for index in sorted(found)]

    return gather
