"""The model gate: complete sequences in every kind of company, held to each request alone, bit by bit."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from crucible import device as devices
from crucible.errors import InputError
from crucible.gates import model_controls
from crucible.gates.model_cases import SEED, STEPS, Corpus, Prompts, random_prompts, text_prompts
from crucible.gates.model_plan import Call, Request
from crucible.gates.model_run import Outcome, Workload, alone, run
from crucible.gates.tensor_tally import Tally, measure
from crucible.model.cache import KVCache
from crucible.model.config import ModelConfig
from crucible.model.model import SYNTHETIC, Model, open_checkpoint
from crucible.model.synthetic import open_synthetic

TINY = "synthetic-2x64"
STEPS_OF = {"int8": STEPS, "f32": 4}  # tokens of a sequence, at most
KEPT_FAILURES = 50
_CONFIG = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=64,
    ffn=96,
    vocab=700,
    context=1024,
    rope_theta=10000.0,
    eps=1e-5,
    tied=False,
)


@dataclass(frozen=True)
class Part:
    """A model in a mode, the workloads that it runs, picked by `choose(corpus)`, and whether the negative
    controls run too."""

    model: str
    mode: str
    steps: int
    choose: Callable[[Corpus], Iterator[Workload]]
    limit: int = 1008
    controls: bool = True

    @property
    def name(self) -> str:
        return f"{self.model} {self.mode}"


def whole(corpus: Corpus) -> Iterator[Workload]:
    """All 1,084 sequences."""
    yield from corpus.fixed()
    yield from corpus.fuzz()


def fixed(corpus: Corpus) -> Iterator[Workload]:
    """The 847 sequences that are no fuzz."""
    yield from corpus.fixed()


def some(corpus: Corpus) -> Iterator[Workload]:
    """What a real model runs in the quick part on cpu: a shrinking batch and three prompts in chunks."""
    yield next(corpus.shrinking())
    yield next(corpus.hybrid())


def few(corpus: Corpus) -> Iterator[Workload]:
    """The first workload of every section: what simt runs in the quick part."""
    seen = set()
    for workload in whole(corpus):
        if workload.section not in seen:
            seen.add(workload.section)
            yield workload


def parts(device_name: str, quick: bool, models=(), modes=()) -> list[Part]:
    """What a run consists of; `models` and `modes` narrow the whole gate or the quick part."""
    from crucible.model.fetch import cached

    if quick and device_name == "simt":
        made = [Part(TINY, mode, 2, few, 20) for mode in ("int8", "f32")]
    elif quick:
        made = [Part(TINY, "int8", STEPS // 2, whole, 256), Part(TINY, "f32", STEPS_OF["f32"], fixed, 256)]
        if cached("smollm2"):
            made += [Part("smollm2", "int8", 4, some, 40), Part("smollm2", "f32", 2, some, 40, False)]
    else:
        made = [
            Part(model, mode, STEPS_OF[mode], {"int8": whole, "f32": fixed}[mode])
            for mode in ("int8", "f32")
            for model in (SYNTHETIC, "smollm2")
        ]
    for name in models:
        if name not in {part.model for part in made}:
            made += [Part(name, m, STEPS_OF[m], {"int8": whole, "f32": fixed}[m]) for m in ("int8", "f32")]
    made = [p for p in made if (not models or p.model in models) and (not modes or p.mode in modes)]
    if not made:
        raise InputError(f"the gate has nothing to run for models {', '.join(models)} in {', '.join(modes)}")
    return made


@dataclass
class Count:
    """What the sequences of one section of a part came to."""

    workloads: int = 0
    sequences: int = 0
    calls: int = 0
    tokens: int = 0
    failed: int = 0  # sequences with any difference
    fields: dict[str, int] = field(default_factory=dict)  # how many differ, by what differs
    logits: Tally = field(default_factory=Tally)  # the last step's, element by element


@dataclass
class ModelGate:
    """One run. `steps` does the work and may be stopped after any of them; what was done stays counted.

    counts[part name, section]; failures names the first differences in words; controls {part name:
    {negative control: what gave it away, "" where nothing did}}.
    """

    device: devices.Device
    parts: list[Part]
    seed: int = SEED
    counts: dict[tuple[str, str], Count] = field(default_factory=dict)
    references: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    controls: dict[str, dict[str, str]] = field(default_factory=dict)
    finished: bool = False

    def __post_init__(self):
        self._references: dict[Request, Outcome] = {}
        self._caches: dict[int, KVCache] = {}

    @property
    def passed(self) -> bool:
        """Whether all of it ran, compared something, found nothing, and caught every control."""
        sequences = sum(count.sequences for count in self.counts.values())
        wrong = any(count.failed for count in self.counts.values())
        alive = any(not seen for controls in self.controls.values() for seen in controls.values())
        return self.finished and sequences > 0 and not wrong and not self.failures and not alive

    def corpus(self, part: Part, prompts: Prompts) -> Corpus:
        """The corpus of a part."""
        return Corpus(prompts, part.steps, part.limit, self.seed)

    def total(self) -> int:
        """How many sequences there are to compare."""
        prompts = random_prompts(700, self.seed)
        return sum(len(w.complete) for p in self.parts for w in p.choose(self.corpus(p, prompts)))

    def steps(self) -> Iterator[tuple[str, int]]:
        """Run the gate; yields what was done and how many sequences it compared."""
        for part in self.parts:
            yield f"{part.name}: load", 0
            model = load(part.model, self.device, part.mode)
            corpus = self.corpus(part, prompts_of(model, self.seed))
            self._references.clear()
            self._caches.clear()
            for workload in part.choose(corpus):
                started = time.perf_counter()
                self.compare(part.name, model, workload)
                spent = time.perf_counter() - started
                self.seconds[part.name] = self.seconds.get(part.name, 0.0) + spent
                yield f"{part.name}: {workload.section}: {workload.name}", len(workload.complete)
            self._caches.clear()
            if not part.controls:
                continue
            self.controls[part.name] = {}
            for name, seen in model_controls.caught(self, model, corpus):
                self.controls[part.name][name] = seen
                yield f"{part.name}: control: {name}", 0
        self.finished = True

    def cache(self, model: Model, pages: int) -> KVCache:
        """The cache of that many pages, shuffled and full of NaN when new; workloads share it in turn."""
        if pages not in self._caches:
            self._caches[pages] = model.new_cache(pages, 16, page_seed=self.seed)
        return self._caches[pages]

    def reference(self, part_name: str, model: Model, request: Request) -> Outcome:
        """The request alone, eager, by reference attention; each request once."""
        if request not in self._references:
            self._references[request] = alone(model, request, self.cache(model, 64))
            self.references[part_name] = self.references.get(part_name, 0) + 1
        return self._references[request]

    def compare(self, part_name: str, model: Model, workload: Workload) -> None:
        """Run a workload and count every sequence against its reference."""
        expected = {r: self.reference(part_name, model, workload.requests[r]) for r in workload.complete}
        actual = run(model, workload, self.cache(model, workload.pages))
        count = self.counts.setdefault((part_name, workload.section), Count())
        count.workloads += 1
        calls = (op for op in workload.operations if isinstance(op, Call))
        count.calls += sum(1 if op.packed else len(op.parts) for op in calls)
        for request in workload.complete:
            where = f"{part_name}, {workload.section}, {workload.name}, request {request}"
            add_sequence(count, self.failures, where, expected[request], actual[request])


def add_sequence(count: Count, failures: list[str], where: str, expected: Outcome, actual: Outcome) -> None:
    """Count one sequence against what it should be; the first differences go to `failures` in words."""
    names, found = expected.differences(actual), measure(expected.final, actual.final)
    count.sequences += 1
    count.tokens += len(actual.tokens)
    count.logits.add(found)
    count.failed += bool(names or found.bad)
    for name in names:
        count.fields[name] = count.fields.get(name, 0) + 1
    if (names or found.bad) and len(failures) < KEPT_FAILURES:
        failures.append(f"{where}: {', '.join(names) or 'final logits'} differ; {found}")


def load(name: str, device: devices.Device, mode: str) -> Model:
    """A model of the gate, the tiny synthetic one included, on a device."""
    if name == TINY:
        return Model.from_checkpoint(open_synthetic(_CONFIG, SEED, TINY), device, mode)
    return Model.from_checkpoint(open_checkpoint(name), device, mode)


def prompts_of(model: Model, seed: int) -> Prompts:
    """Prompts for a model: cut from English text where it has a real vocabulary, else random ids."""
    if model.source is None:
        return random_prompts(model.config.vocab, seed)
    from crucible.model.heldout import text

    return text_prompts(model.encode(text()[: 1 << 17]))
