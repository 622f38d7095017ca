"""The engine gate's workloads: 42 runs of 384 sequences, made from a seed and the model's context."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from crucible.engine.request import Request
from crucible.engine.scheduler import Limits
from crucible.model.config import ModelConfig
from crucible.numerics.contract import PAGE_SIZE

BURSTS = (2, 4, 8, 16)
BUDGETS = (256, 512, 1024)
CAPS = (None, 64, 128, 256)
EDGES = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512)
PRESSURE_PAGES = 32
FUZZ = 24
RUNS, SEQUENCES = 42, 384
_STEPS = 12  # tokens of a sequence whose prompt is what matters


@dataclass(frozen=True)
class Workload:
    """Requests, the step at which each arrives, and the steps at which some are cancelled."""

    name: str
    requests: tuple[Request, ...]
    limits: Limits
    arrivals: tuple[int, ...] = ()
    cancels: dict[int, int] = field(default_factory=dict)
    share: bool = True
    page_seed: int | None = None

    @property
    def kind(self) -> str:
        """burst, lengths, prefix, pressure or fuzz."""
        return self.name.split()[0]

    def arrival(self, index: int) -> int:
        """Step at which request `index` is submitted."""
        return self.arrivals[index] if self.arrivals else 0


def workloads(config: ModelConfig, seed: int) -> list[Workload]:
    """All runs, in a fixed order; the same seed and config give the same ones."""
    r = random.Random(seed)
    found = [_burst(r, config, count) for count in BURSTS]
    edges = _edges(r, config)
    for budget in BUDGETS:
        for cap in CAPS:
            found.append(_lengths(edges, budget, cap, len(found)))
    found.append(_prefixes(r, config))
    found.append(_pressure(r, config))
    found += [_fuzz(r, config, number) for number in range(FUZZ)]
    return found


def small(found: Sequence[Workload], rows: int) -> list[Workload]:
    """Of every kind the workloads that run at most `rows` prompt rows; of `fuzz` the first six."""
    chosen = [w for w in found if sum(len(q.prompt) for q in w.requests) <= rows]
    fuzz = [w for w in chosen if w.kind == "fuzz"][:6]
    return [w for w in chosen if w.kind != "fuzz"] + fuzz


def _tokens(r: random.Random, config: ModelConfig, count: int) -> list[int]:
    return [r.randrange(config.vocab) for _ in range(count)]


def _request(r: random.Random, prompt: list[int], tokens: int) -> Request:
    """A request with its digests; every third greedy, the others of every sampler and setting."""
    greedy = r.random() < 1 / 3
    return Request(
        tuple(prompt),
        max_tokens=tokens,
        temperature=0.0 if greedy else r.choice((0.6, 1.0, 1.5)),
        top_k=r.choice((0, 20, 200)),
        top_p=r.choice((1.0, 0.9)),
        seed=None if greedy else r.randrange(1 << 64),
        sampler=r.choice(("inverse-cdf", "gumbel-id")),
        ignore_eos=True,
        digests=True,
        kv_digests=True,
    )


def _burst(r: random.Random, config: ModelConfig, count: int) -> Workload:
    requests = [_request(r, _tokens(r, config, r.randrange(1, 97)), 16) for _ in range(count)]
    return Workload(f"burst of {count}", tuple(requests), Limits(pages=16 * count), page_seed=count)


def _edges(r: random.Random, config: ModelConfig) -> tuple[Request, ...]:
    """A request about every page and block border, and one that ends with the context."""
    lengths = [n for n in EDGES if n + _STEPS <= config.context]
    lengths += [config.context - _STEPS] * (len(EDGES) + 1 - len(lengths))
    requests = [_request(r, _tokens(r, config, n), _STEPS) for n in lengths]
    r.shuffle(requests)
    return tuple(requests)


def _lengths(requests: tuple[Request, ...], budget: int, cap: int | None, number: int) -> Workload:
    rows = sum(len(q.prompt) + PAGE_SIZE + q.max_tokens for q in requests)
    limits = Limits(prefill_budget=budget, chunk_cap=cap, pages=rows // PAGE_SIZE + len(requests))
    order = requests[number % len(requests) :] + requests[: number % len(requests)]
    name = f"lengths budget {budget} cap {'off' if cap is None else cap}"
    return Workload(name, order, limits, page_seed=number)


def _prefixes(r: random.Random, config: ModelConfig) -> Workload:
    """A stem, then requests that share a page of it, one row less, one more, part of a page, all of it."""
    stem = _tokens(r, config, 96)
    texts = [stem]
    for kept in (15, 16, 17, 31, 32, 33, 47, 48, 49, 80, 95):
        texts.append([*stem[:kept], *_tokens(r, config, 9)])
    texts += [list(stem), list(stem), *([*_tokens(r, config, 40)] for _ in range(1))]
    texts.append(list(texts[-1]))  # two requests that fill the same pages at once
    arrivals = (0, *(4 for _ in texts[1:-2]), 9, 9)
    requests = tuple(_request(r, text, 20) for text in texts)
    limits = Limits(prefill_budget=128, chunk_cap=24, pages=160)
    return Workload("prefix hits in mid-chunk", requests, limits, arrivals, page_seed=5)


def _pressure(r: random.Random, config: ModelConfig) -> Workload:
    requests = [_request(r, _tokens(r, config, r.randrange(10, 70)), r.randrange(40, 90)) for _ in range(14)]
    limits = Limits(prefill_budget=256, pages=PRESSURE_PAGES)
    return Workload(f"pressure of {PRESSURE_PAGES} pages", tuple(requests), limits, page_seed=6)


def _fuzz(r: random.Random, config: ModelConfig, number: int) -> Workload:
    """Four requests, some of which begin alike, at random times and limits; some are cancelled."""
    stem = _tokens(r, config, 64)
    requests = []
    for _ in range(4):
        prompt = stem[: r.choice((0, 15, 16, 17, 32, 40, 64))] + _tokens(r, config, r.randrange(1, 60))
        requests.append(_request(r, prompt, r.randrange(4, 32)))
    need = max(-(-(len(q.prompt) + q.max_tokens) // PAGE_SIZE) for q in requests)
    limits = Limits(
        prefill_budget=r.choice((16, 64, 256)),
        chunk_cap=r.choice((None, 7, 16, 33)),
        decode_batch=r.choice((2, 4, 64)),
        pages=need + r.randrange(0, 8),
    )
    arrivals = tuple(r.randrange(0, 10) for _ in requests)
    cancels = {i: arrivals[i] + r.randrange(0, 16) for i in range(4) if r.random() < 0.3}
    share = r.random() < 0.8
    return Workload(f"fuzz {number}", tuple(requests), limits, arrivals, cancels, share, page_seed=number)
