"""The whole model on the GPU beside transformers: packed prefill, and sixteen requests decoding."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crucible.bench.model_peers import Peers
from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import interleave
from crucible.bench.stages import elapsed
from crucible.errors import UnavailableError
from crucible.kv.slices import Slice
from crucible.model.batch import generate_batch
from crucible.model.cache import KVCache, pages_for
from crucible.model.model import SYNTHETIC, Model
from crucible.numerics import inputs
from crucible.sampling.params import SamplingParams

PREFILL = (4, 256)  # prompts, tokens of each
DECODE = (16, 16, 16)  # requests, prompt tokens, tokens generated
_REPLAYS = 10
_ARITHMETIC = {
    "f32": "f32, contract order",
    "int8": "int8 weights, 16-bit activations, exact sums; the rest f32",
}


@dataclass
class Ours:
    """A model of ours with the captures of both tasks warm."""

    model: Model
    prompts: np.ndarray  # of the prefill [P][T]
    short: np.ndarray  # of the decode [R][T]

    def __post_init__(self) -> None:
        count, length = self.prompts.shape
        self.ids = self.prompts.reshape(-1)
        self.slices = [Slice(r, 0, length) for r in range(count)]
        self.cache = self._cache(count, length)
        for request in range(count):
            self.cache.reserve(request, length)
        requests, length, steps = DECODE
        self.decode_cache = self._cache(requests, length + steps)
        for _ in range(3):  # eager, captured, replayed
            self.prefill_wall()
            self.tokens = self.generate()

    def _cache(self, requests: int, positions: int) -> KVCache:
        return self.model.new_cache(pages_for(positions) * requests, requests)

    def prefill_device(self) -> float:
        """Milliseconds of a replayed prefill between two events, of many enqueued together."""
        (entry,) = self.model.transformer.captures(self.cache).entries("packed")
        return elapsed(entry.graph.launch, _REPLAYS) / 1000

    def prefill_wall(self) -> float:
        """Milliseconds from the call to the end of its work: checks, upload, replay, copy of the logits."""
        started = time.perf_counter()
        self.model.transformer.forward(self.ids, self.slices, self.cache)
        self.model.device.synchronize()
        return 1000 * (time.perf_counter() - started)

    def generate(self) -> list[list[int]]:
        params = [SamplingParams()] * DECODE[0]
        prompts = [row.tolist() for row in self.short]
        return generate_batch(self.model, prompts, params, DECODE[2], cache=self.decode_cache)

    def rate(self) -> float:
        """Tokens a second of a whole batch, from prompts on the host to tokens on the host."""
        started = time.perf_counter()
        self.generate()
        return DECODE[0] * DECODE[2] / (time.perf_counter() - started)

    def facts(self) -> dict[str, str | int | float]:
        """What the host paid a call, the captures, and the scratch memory."""
        transformer = self.model.transformer
        self.prefill_wall()
        timing = transformer.timing
        found = {
            "prepare us": 1e6 * timing.prepare_seconds,
            "upload us": 1e6 * timing.upload_seconds,
            "launch us": 1e6 * timing.launch_seconds,
            "upload bytes": timing.upload_bytes,
            "scratch bytes": transformer.runner.scratch.bytes,
            "scratch high water": transformer.runner.scratch.high_water,
        }
        for cache, kind in ((self.cache, "packed"), (self.decode_cache, "decode")):
            statistics = transformer.captures(cache).statistics[kind]
            found |= {
                f"{kind} captures": statistics.captures,
                f"{kind} capture ms": 1000 * statistics.capture_seconds / max(statistics.captures, 1),
                f"{kind} hit rate": statistics.hit_rate,
            }
        return found


def run(
    modes: Sequence[str] = ("f32", "int8"),
    peers: bool = True,
    compiled: bool = True,
    rounds: int = 5,
    say: Callable[[str], None] = lambda text: None,
    name: str = SYNTHETIC,
) -> list[Outcome]:
    """Three outcomes: prefill device time, prefill wall time, decode rate. UnavailableError without a GPU."""
    import crucible.device as devices

    if devices.get("cuda").name != "cuda":
        raise UnavailableError("the whole model on the GPU needs device cuda")
    ours: dict[str, Ours] = {}
    for mode in modes:
        say(f"load {name} {mode}")
        model = Model.load(name, "cuda", mode)
        prompts, short = (_ids(model, s, *shape) for s, shape in ((1, PREFILL), (2, DECODE[:2])))
        ours[f"crucible {mode}"] = Ours(model, prompts, short)
    first = next(iter(ours.values()))
    absent: list[tuple[str, str]] = []
    theirs = None
    if peers:
        say("load transformers")
        theirs = Peers.load(first.model.config, first.prompts, first.short, DECODE[2], compiled, absent)
    say("measure")
    tasks = (
        ("prefill {}x{}, device".format(*PREFILL), "ms", "prefill_device", False),
        ("prefill {}x{}, wall".format(*PREFILL), "ms", "prefill_wall", False),
        ("decode of {} requests, {} + {} tokens, wall".format(*DECODE), "tokens/s", "rate", True),
    )
    return [
        _outcome(title, unit, method, higher, ours, theirs, rounds, absent)
        for title, unit, method, higher in tasks
    ]


def _ids(model: Model, stream: int, count: int, length: int) -> np.ndarray:
    bits = inputs.bits(12, stream, count * length) % np.uint32(model.config.vocab)
    return bits.astype(np.int64).reshape(count, length)


def _outcome(title, unit, method: str, higher: bool, ours, theirs, rounds: int, absent) -> Outcome:
    calls: dict[str, Callable[[], float]] = {n: getattr(o, method) for n, o in ours.items()}
    arithmetic = {n: _ARITHMETIC[o.model.mode] for n, o in ours.items()}
    for peer in () if theirs is None else theirs.contenders(method):
        calls[peer.name], arithmetic[peer.name] = peer.run, peer.arithmetic
    samples = interleave(calls, rounds)
    made = []
    for n, values in samples.items():
        facts = ours[n].facts() if n in ours and method != "prefill_device" else {}
        made.append(Contender(n, arithmetic[n], unit, tuple(values), n in ours, facts))
    missing = tuple(absent) if method == "rate" else ()
    return Outcome(title, tuple(made), higher, missing)
