"""The workloads of the model gate: 847 fixed sequences and 24 fuzz sets of 237, as plans for any model."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from crucible.gates.model_plan import Policy, Request, plan, waves
from crucible.gates.model_run import Workload
from crucible.gates.tensor_cases import Draw
from crucible.numerics.inputs import bits
from crucible.sampling.params import SamplingParams

SEED = 20260908
STEPS = 16
CHUNKS = (32, 64, 128, 256, 37, 73, 131)
TOP_KS = (5, 40, 128, 500)
COUNTS = (1, 2, 3, 4, 8, 16)
REUSE = ((16, 1, 8, 2), (1, 2, 4, 8, 16, 1, 8, 2))
BOUNDARIES = (0, 1, 3, 6)
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 768, 941, 1008)
FUZZ_SIZES = (5, 9, 16, 3, 12, 8, 15, 11) * 3  # complete sequences of each fuzz set
HYBRID = "exact-q4-k64-hybrid"
SMALL_POOL = 32

_FUZZ_STREAM, _PROMPT_STREAM = 1 << 22, 1 << 23

Prompts = Callable[[int, int], tuple[int, ...]]  # (number, length) -> token ids, the same for the same number


def random_prompts(vocab: int, seed: int) -> Prompts:
    """Prompts of token ids drawn evenly from a vocabulary."""

    def make(number: int, length: int) -> tuple[int, ...]:
        words = bits(seed, _PROMPT_STREAM + number, length)
        return tuple(int(word) * vocab >> 32 for word in words)

    return make


def text_prompts(ids: Sequence[int]) -> Prompts:
    """Prompts cut from the tokens of a text, each at a place of its own."""

    def make(number: int, length: int) -> tuple[int, ...]:
        start = number * 389 % (len(ids) - length)
        return tuple(ids[start : start + length])

    return make


def mixed(number: int) -> SamplingParams:
    """Sampling parameters number 0, 1, …: greedy and every top_k, with both samplers and some with top_p."""
    kind, again = number % (1 + len(TOP_KS)), number // (1 + len(TOP_KS))
    if kind == 0:
        return SamplingParams()
    return SamplingParams(
        temperature=(0.8, 1.0, 0.7)[number % 3],
        top_k=TOP_KS[kind - 1],
        top_p=(1.0, 1.0, 0.9)[again % 3],
        seed=141025 + 977 * number + (again % 2 << 60),
        sampler=("inverse-cdf", "gumbel-id")[again % 2],
    )


@dataclass(frozen=True)
class Corpus:
    """What makes the workloads: a model's prompts, at most `steps` tokens a sequence, `limit` the longest
    prompt (longer ones are left out, but for one of `limit`)."""

    prompts: Prompts
    steps: int = STEPS
    limit: int = 1008
    seed: int = SEED

    def request(self, number: int, length: int, steps: int | None = None, sampling: int | None = None):
        """Request `number`: its prompt, and by default all the steps and sampling of the same number."""
        made = self.steps if steps is None else max(1, steps * self.steps // STEPS)
        sampled = mixed(number if sampling is None else sampling)
        return Request(self.prompts(number, min(length, self.limit)), made, sampled)

    def fixed(self) -> Iterator[Workload]:
        """Every fixed workload, section by section."""
        for section in (
            self.orders,
            self.together,
            self.packing,
            self.reuse,
            self.cancellation,
            self.one_token,
            self.shrinking,
            self.hybrid,
            self.lengths,
            self.small_pool,
            self.by_itself,
        ):
            yield from section()

    def orders(self) -> Iterator[Workload]:
        """Two sets of three requests in all six orders, at seven chunk sizes: 252 sequences."""
        for first, lengths in ((0, (256, 129, 17)), (3, (65, 37, 160))):
            for at, chunk in enumerate(CHUNKS):
                three = [self.request(first + i, n, sampling=at + i) for i, n in enumerate(lengths)]
                for order in itertools.permutations(range(3)):
                    name = f"order {order}, chunk {chunk}, prompts {lengths}"
                    yield self._one("orders", name, three, Policy(chunk, order=_ranked(order)))

    def together(self) -> Iterator[Workload]:
        """Final rows of 1, 2, 3, 4, 8 and 16 requests in one call, both orders: 68 sequences."""
        for reverse in (False, True):
            groups = [[self.request(10 + i, 48) for i in range(n)] for n in COUNTS]
            policy = Policy(32, order=_reversed if reverse else _plain)
            yield self._waves("together", f"{COUNTS} finish together{_said(reverse)}", groups, policy)

    def packing(self) -> Iterator[Workload]:
        """Sixteen requests of mixed lengths and sampling, packing on and off, both orders: 64 sequences."""
        some = [self.request(30 + i, 20 + 11 * i) for i in range(16)]
        for packed, reverse in itertools.product((True, False), (False, True)):
            policy = Policy(64, packed=packed, order=_reversed if reverse else _plain)
            name = f"sixteen mixed, packing {'on' if packed else 'off'}{_said(reverse)}"
            yield self._one("packing", name, some, policy)

    def reuse(self) -> Iterator[Workload]:
        """Batches of changing size over the same buffers, pages and recordings, graph and eager: 138."""
        for graph, counts in itertools.product((True, False), REUSE):
            groups = [
                [self.request(50 + i, 24 + 5 * i, sampling=wave + i) for i in range(n)]
                for wave, n in enumerate(counts)
            ]
            name = f"batches of {'→'.join(map(str, counts))}{_how(graph)}"
            yield self._waves("reuse", name, groups, Policy(128), graph)

    def cancellation(self) -> Iterator[Workload]:
        """One of five is cancelled after 0, 1, 3 and 6 calls and its pages go to a sixth: 40 sequences."""
        for graph, boundary in itertools.product((True, False), BOUNDARIES):
            six = [self.request(70 + i, 40 + 9 * i) for i in range(6)]
            six[2] = replace(six[2], steps=max(16, self.steps))  # must not finish before it is cancelled
            operations = plan(six, Policy(32, segments=5), {2: boundary})
            name = f"cancelled at boundary {boundary}{_how(graph)}"
            yield Workload("cancellation", name, six, operations, graph=graph)

    def one_token(self) -> Iterator[Workload]:
        """Sixteen requests that make a single token, both orders: 32 sequences."""
        for reverse in (False, True):
            some = [self.request(80 + i, 9 + 7 * i, steps=1) for i in range(16)]
            policy = Policy(37, order=_reversed if reverse else _plain)
            yield self._one("one token", f"max_tokens 1{_said(reverse)}", some, policy)

    def shrinking(self) -> Iterator[Workload]:
        """Sixteen mixed decodes of which eight end half way, both orders, graph and eager: 64 sequences."""
        some = [self.request(100 + i, 16 + i, steps=(16, 8)[i % 2]) for i in range(16)]
        for graph, reverse in itertools.product((True, False), (False, True)):
            policy = Policy(256, order=_reversed if reverse else _plain)
            name = f"sixteen decodes shrink to eight{_said(reverse)}{_how(graph)}"
            yield self._one("shrinking", name, some, policy, graph)

    def hybrid(self) -> Iterator[Workload]:
        """Three requests in six orders by an attention variant that reads its chunk from scratch: 36."""
        three = [self.request(120 + i, n) for i, n in enumerate((130, 70, 33))]
        for chunk in (37, 64):
            for order in itertools.permutations(range(3)):
                made = self._one(
                    "hybrid", f"order {order}, chunk {chunk}", three, Policy(chunk, order=_ranked(order))
                )
                yield replace(made, variant=HYBRID)

    def lengths(self) -> Iterator[Workload]:
        """Prompts at every boundary of pages, tiles and the context, packed together, both orders: 42."""
        for reverse in (False, True):
            some = [self.request(130 + i, n) for i, n in enumerate(LENGTHS)]
            policy = Policy(256, segments=8, order=_reversed if reverse else _plain)
            yield self._one(
                "lengths", f"prompts 1 to {min(LENGTHS[-1], self.limit)}{_said(reverse)}", some, policy
            )

    def small_pool(self) -> Iterator[Workload]:
        """24 requests through a pool of 32 pages that their decode grows into, graph and eager: 48."""
        some = [self.request(160 + i, (14, 30, 61, 110)[i % 4] + i) for i in range(24)]
        for graph in (True, False):
            policy = Policy(64, pages=SMALL_POOL, mixed=True)
            made = self._one("small pool", f"{SMALL_POOL} pages{_how(graph)}", some, policy, graph)
            yield replace(made, pages=SMALL_POOL)

    def by_itself(self) -> Iterator[Workload]:
        """Nine requests one at a time, at seven chunk sizes: 63 sequences."""
        nine = [self.request(i, n, sampling=i) for i, n in enumerate((256, 129, 17, 65, 37, 160))]
        nine += [self.request(120 + i, n) for i, n in enumerate((130, 70, 33))]
        for chunk in CHUNKS:
            yield self._one("by itself", f"alone, chunk {chunk}", nine, Policy(chunk, segments=1))

    def fuzz(self) -> Iterator[Workload]:
        """24 random sets: lengths, sampling, order of every call, limits, cancellations. 237 sequences."""
        for number, size in enumerate(FUZZ_SIZES):
            draw = Draw(self.seed, _FUZZ_STREAM + number, 1 << 14)
            cancel = {i: draw.below(7) for i in range(size, size + draw.below(3))}
            requests = [self._random(draw, 1000 + 32 * number + i) for i in range(size + len(cancel))]
            # A request that is cancelled must not end first, and is admitted among the others.
            for i in cancel:
                requests[i] = replace(requests[i], steps=16)
            place = draw.order(len(requests))
            cancel = {place.index(i): boundary for i, boundary in cancel.items()}
            policy = Policy(
                chunk=draw.of((*CHUNKS, 7, 16)),
                rows=draw.of((64, 200, 512, 1024)),
                segments=draw.of((2, 4, 8, 16)),
                pages=draw.of((96, 160, 512)),
                packed=draw.below(6) > 0,
                mixed=draw.below(2) > 0,
                order=lambda call, active, draw=draw: [active[i] for i in draw.order(len(active))],
            )
            requests = [requests[i] for i in place]
            yield Workload(
                "fuzz",
                f"fuzz set {number}",
                requests,
                plan(requests, policy, cancel),
                variant=draw.of((None, None, None, HYBRID)),
                graph=draw.below(3) > 0,
            )

    def _random(self, draw: Draw, number: int) -> Request:
        prompt = self.prompts(number, min(1 + draw.below(draw.of((8, 64, 200, 400))), self.limit))
        greedy = draw.below(4) == 0
        sampling = SamplingParams(
            temperature=0.0 if greedy else draw.of((0.3, 0.8, 1.0, 1.5)),
            top_k=draw.of((0, 1, *TOP_KS)),
            top_p=draw.of((1.0, 1.0, 0.95, 0.5)),
            seed=draw.below(1 << 32) << 32 | draw.below(1 << 32),
            sampler=draw.of(("inverse-cdf", "gumbel-id")),
        )
        return Request(prompt, 1 + draw.below(self.steps), sampling)

    def _one(self, section, name, requests, policy: Policy, graph: bool = True) -> Workload:
        return Workload(section, name, requests, plan(requests, policy), graph=graph)

    def _waves(self, section, name, groups, policy: Policy, graph: bool = True) -> Workload:
        requests, operations = waves(groups, policy)
        return Workload(section, name, requests, operations, graph=graph)


def _ranked(order: Sequence[int]):
    return lambda call, active: sorted(active, key=order.index)


def _plain(call: int, active: list[int]) -> list[int]:
    return active


def _reversed(call: int, active: list[int]) -> list[int]:
    return active[::-1]


def _said(reverse: bool) -> str:
    return ", reversed" if reverse else ""


def _how(graph: bool) -> str:
    return ", graph" if graph else ", eager"
