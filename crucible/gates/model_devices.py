"""One model on two devices: the same prompts give the same keys, values, logits, draws and tokens."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from crucible import device as devices
from crucible.errors import InputError
from crucible.gates.model_cases import SEED, Corpus
from crucible.gates.model_parts import STEPS_OF, TINY, load, prompts_of
from crucible.gates.model_plan import Policy, Request, plan
from crucible.gates.model_results import Count, Results
from crucible.gates.model_run import Workload, run
from crucible.gates.tensor_tally import Tally, measure
from crucible.kv.slices import Slice
from crucible.model.cache import pages_for
from crucible.model.model import SYNTHETIC, Model
from crucible.numerics.digest import digest
from crucible.sampling.params import SamplingParams

TEXT_TOKENS = 384
LENGTHS = (17, 129, 300, 64, 1, 48)
_CHUNK = 128


@dataclass
class Compared:
    """A model in a mode on both devices: `text` is the logits of every row of the text, `text_equal` whether
    its K and V digests are equal too; `count` the sequences."""

    model: str
    mode: str
    text_tokens: int = 0
    text: Tally = field(default_factory=Tally)
    digests: dict[str, str] = field(default_factory=dict)
    text_equal: bool = False
    count: Count = field(default_factory=Count)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """Whether anything differs, or nothing was compared."""
        return not self.text_equal or self.text.bad > 0 or self.count.failed > 0 or not self.count.sequences


@dataclass
class DevicesGate:
    """One run against the cpu device; `steps` may be stopped after any step, what was done is kept.

    InputError where it would compare cpu with itself, or read no text.
    """

    device: devices.Device
    models: list[str]
    modes: list[str]
    text: str
    seed: int = SEED
    compared: list[Compared] = field(default_factory=list)
    found: Results = field(default_factory=Results)
    finished: bool = False

    def __post_init__(self) -> None:
        if self.device.name == "cpu":
            raise InputError("cpu is what the other devices are held to; choose cuda or simt")
        if not self.text:
            raise InputError("the text to feed is empty; give some sentences")

    @property
    def passed(self) -> bool:
        """Whether all of it ran and everything is equal."""
        return self.finished and bool(self.compared) and not any(c.bad for c in self.compared)

    @property
    def total(self) -> int:
        """How many steps there are."""
        return 3 * len(self.models) * len(self.modes)

    def steps(self) -> Iterator[str]:
        """Run; yields what was done."""
        for name in self.models:
            for mode in self.modes:
                pair = [load(name, device, mode) for device in (devices.get("cpu"), self.device)]
                yield f"{name} {mode}: load"
                found = Compared(name, mode)
                self._text(found, pair)
                self.compared.append(found)
                yield f"{name} {mode}: text"
                self._sequences(found, pair)
                yield f"{name} {mode}: sequences"
        self.finished = True

    def _text(self, found: Compared, pair: list[Model]) -> None:
        """Every row's logits of a text of some hundred tokens, its K and V."""
        tokens = 24 if self.device.name == "simt" else TEXT_TOKENS
        ids = pair[0].encode(self.text)[:tokens]
        found.text_tokens = len(ids)
        results = []
        for model in pair:
            started = time.perf_counter()
            results.append(prefill(model, ids))
            found.seconds[f"text on {model.device.name}"] = time.perf_counter() - started
        (logits, k, v), (other, other_k, other_v) = results
        found.text = measure(logits, other)
        found.digests = {"logits": digest(logits), "k": k, "v": v}
        found.text_equal = (k, v, digest(logits)) == (other_k, other_v, digest(other))
        if not found.text_equal:
            self.found.failures.append(
                f"{found.model} {found.mode}, text: {found.text}; K {k == other_k}, V {v == other_v}"
            )

    def _sequences(self, found: Compared, pair: list[Model]) -> None:
        """Packed requests of mixed sampling, and the text's own continuation, greedy and seeded."""
        small = self.device.name == "simt"
        corpus = Corpus(
            prompts_of(pair[0], self.seed), 2 if small else STEPS_OF["int8"], 20 if small else 1008
        )
        some = [corpus.request(i, n, sampling=i) for i, n in enumerate(LENGTHS[:3] if small else LENGTHS)]
        ids = tuple(pair[0].encode(self.text)[: found.text_tokens])
        seeded = SamplingParams(temperature=0.8, top_k=500, seed=141025)
        some += [Request(ids, corpus.steps, sampling) for sampling in (SamplingParams(), seeded)]
        workload = Workload("devices", "mixed", some, plan(some, Policy(_CHUNK)), pages=128)
        outcomes = []
        for model in pair:
            started = time.perf_counter()
            outcomes.append(run(model, workload, model.new_cache(128, 16, page_seed=self.seed)))
            found.seconds[f"sequences on {model.device.name}"] = time.perf_counter() - started
        for request in workload.complete:
            where = f"{found.model} {found.mode}, request {request}"
            self.found.compare(found.count, where, *(outcome[request] for outcome in outcomes))


def prefill(model: Model, ids: list[int]) -> tuple[np.ndarray, str, str]:
    """(logits f32 [T][V] of every row, K digest, V digest) of a prompt run in chunks."""
    cache = model.new_cache(pages_for(len(ids)), page_seed=3)
    cache.reserve(0, len(ids))
    rows = []
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        slices = [Slice(0, start, len(part))]
        logits = model.transformer.forward(part, slices, cache, rows=range(len(part)))
        rows.append(np.array(model.device.download(logits)))
    k, v = cache.read(0, len(ids))
    return np.concatenate(rows), digest(k), digest(v)


def models_for(device_name: str) -> list[str]:
    """The models that a run compares by default."""
    return [TINY] if device_name == "simt" else [SYNTHETIC, "smollm2"]
