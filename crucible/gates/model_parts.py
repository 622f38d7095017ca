"""What the model gate runs: which models, in which modes, over which part of the corpus."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from crucible import device as devices
from crucible.errors import InputError
from crucible.gates.model_cases import STEPS, Corpus, Prompts, random_prompts, text_prompts
from crucible.gates.model_run import Workload
from crucible.model.fetch import cached
from crucible.model.model import SYNTHETIC, TINY, Model, open_checkpoint
from crucible.model.weights import MODES

STEPS_OF = {"int8": STEPS, "f32": 4}  # tokens of a sequence, at most


@dataclass(frozen=True)
class Part:
    """A model in a mode, the workloads that it runs, picked by `choose(corpus)`, at most `steps` tokens and
    `limit` prompt tokens a sequence, and whether the negative controls run too."""

    model: str
    mode: str
    steps: int
    choose: Callable[[Corpus], Iterator[Workload]]
    limit: int = 1008
    controls: bool = True

    @property
    def name(self) -> str:
        return f"{self.model} {self.mode}"

    def corpus(self, prompts: Prompts, seed: int) -> Corpus:
        """The corpus with this part's limits."""
        return Corpus(prompts, self.steps, self.limit, seed)


def whole(corpus: Corpus) -> Iterator[Workload]:
    """All 1,084 sequences."""
    yield from corpus.fixed()
    yield from corpus.fuzz()


def fixed(corpus: Corpus) -> Iterator[Workload]:
    """The 847 sequences that are no fuzz."""
    yield from corpus.fixed()


def some(corpus: Corpus) -> Iterator[Workload]:
    """What a real model runs in the quick part: a shrinking batch and three prompts in chunks."""
    yield next(corpus.shrinking())
    yield next(corpus.hybrid())


def few(corpus: Corpus) -> Iterator[Workload]:
    """The first workload of every section."""
    seen = set()
    for workload in whole(corpus):
        if workload.section not in seen:
            seen.add(workload.section)
            yield workload


CORPUS_OF = {"int8": whole, "f32": fixed}


def parts(device_name: str, quick: bool, models: Sequence[str] = (), modes: Sequence[str] = ()) -> list[Part]:
    """What a run consists of; `models` and `modes` narrow it, and a model of another name is added to it.

    InputError for a mode that does not exist.
    """
    if unknown := set(modes) - set(MODES):
        raise InputError(f"unknown mode {min(unknown)!r}; choose one of {', '.join(MODES)}")
    if quick and device_name == "simt":
        made = [Part(TINY, mode, 2, few, 20) for mode in ("int8", "f32")]
    elif quick:
        made = [Part(TINY, "int8", STEPS // 2, whole, 256), Part(TINY, "f32", STEPS_OF["f32"], fixed, 256)]
        if cached("smollm2"):
            made += [Part("smollm2", "int8", 4, some, 40), Part("smollm2", "f32", 2, some, 40, False)]
    else:
        made = [_whole(model, mode) for mode in ("int8", "f32") for model in (SYNTHETIC, "smollm2")]
    for name in models:
        if name not in {part.model for part in made}:
            made += [_whole(name, mode) for mode in ("int8", "f32")]
    return [p for p in made if (not models or p.model in models) and (not modes or p.mode in modes)]


def _whole(model: str, mode: str) -> Part:
    return Part(model, mode, STEPS_OF[mode], CORPUS_OF[mode])


def load(name: str, device: devices.Device, mode: str) -> Model:
    """A model of the gate, the tiny synthetic one included, on a device."""
    return Model.from_checkpoint(open_checkpoint(name), device, mode)


def prompts_of(model: Model, seed: int) -> Prompts:
    """Prompts for a model: cut from English text where it has a real vocabulary, else random ids."""
    if model.source is None:
        return random_prompts(model.config.vocab, seed)
    from crucible.model.heldout import text

    return text_prompts(model.encode(text()[: 1 << 17]))
