"""Rates of candidates measured by several processes, put together in the order of the requests."""

import concurrent.futures
import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace

from crucible import device as devices
from crucible.drift.candidates import Candidate, open_candidate
from crucible.drift.corpus import Corpus, prompts_of
from crucible.drift.paths import REFERENCE
from crucible.drift.rate import NOTHING, Rate, measure
from crucible.errors import CrucibleError, InputError, UnavailableError
from crucible.model.model import Model, open_checkpoint

_CHUNK = 16  # requests of a task: about what one forward takes; Ctrl-C waits for the tasks that run

# f(corpus, sequences) -> (sequences done, rates so far), of the corpus's requests 0 .. sequences-1.
Measure = Callable[[Corpus, int], Iterator[tuple[int, list[Rate]]]]


@contextlib.contextmanager
def measuring(model: Model, names: Sequence[str], jobs: int = 1, spec: str = "") -> Iterator[Measure]:
    """A function that measures the reference and then the candidates `names`, for as long as the block runs.

    `jobs` processes share the sequences, each with a model of its own, opened as `spec`; one job is this
    process with `model`. The rates are the same whichever it is.
    """
    if jobs < 1:
        raise InputError(f"{jobs} processes measure nothing; give at least one")
    if jobs > 1:
        with Spread(spec, model.device.name, model.mode, tuple(names), jobs) as spread:
            yield spread.measure
        return
    candidates = [REFERENCE, *(open_candidate(n, model.device) for n in names)]
    yield lambda corpus, sequences: measure(model, corpus.requests(sequences), candidates)


@dataclass
class Spread:
    """Processes that each open the model and the candidates once; used as a context."""

    spec: str
    device: str
    mode: str
    names: tuple[str, ...]
    jobs: int
    _pool: concurrent.futures.ProcessPoolExecutor | None = field(default=None, repr=False)

    def __enter__(self) -> "Spread":
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        arguments = (self.spec, self.device, self.mode, self.names)
        self._pool = concurrent.futures.ProcessPoolExecutor(self.jobs, context, _start, arguments)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=True, cancel_futures=True)

    def measure(self, corpus: Corpus, sequences: int) -> Iterator[tuple[int, list[Rate]]]:
        """As crucible.drift.rate.measure, of requests 0 .. sequences-1 of the corpus."""
        assert self._pool is not None
        if sequences < 1:
            raise InputError(NOTHING.format(sequences))
        settings = {
            name: getattr(corpus, name) for name in ("steps", "replicates", "sampler", "lengths", "seed")
        }
        tasks = [(first, min(_CHUNK, sequences - first)) for first in range(0, sequences, _CHUNK)]
        waiting = [self._pool.submit(_do, settings, first, count) for first, count in tasks]
        rates: list[Rate] = []
        for (first, count), future in zip(tasks, waiting, strict=True):
            try:
                found = future.result()
            except BrokenProcessPool:
                raise UnavailableError(
                    f"one of {self.jobs} drift processes ended in the middle (killed, out of memory, or by a "
                    "candidate); use fewer jobs, or one to see where"
                ) from None
            for rate, more in zip(rates, found, strict=False):
                rate.add(more)
            rates = rates or found
            yield first + count, rates


# Of a process that Spread started: what it opened, or why it could not, for the parent to hear.
_worker: tuple[Model, list[Candidate]] | CrucibleError | None = None


def _start(spec: str, device: str, mode: str, names: tuple[str, ...]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it keeps what is done
    try:
        target = devices.get(device)
        model = Model.from_checkpoint(open_checkpoint(spec), target, mode)
        _worker = model, [REFERENCE, *(open_candidate(n, target) for n in names)]
    except CrucibleError as error:
        _worker = error


def _do(settings: dict, first: int, count: int) -> list[Rate]:
    if isinstance(_worker, CrucibleError):
        raise _worker
    assert _worker is not None
    model, candidates = _worker
    corpus = replace(Corpus(prompts_of(model)), **settings)
    *_, (_, rates) = measure(model, corpus.requests(count, first), candidates)
    return rates
