"""Prefill and decode of a whole model in tokens per second, every engine in a process of its own."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from crucible.bench.engines import ALIASES, ENGINES, LLAMA_CPP_CONTEXT, PEERS
from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import interleave
from crucible.bench.worker import Worker
from crucible.errors import InputError, UnavailableError

TEXT = """
A numerical result is only as good as its account. Two runs of one program may add the same numbers in
two orders, and each order rounds differently; the sums then part in the last bit, the next layer multiplies
the difference, and a sampler that stands between two near-equal words turns it into another sentence.
Whoever wants to repeat a result must therefore say in which order every sum is taken, and every machine
must keep to it.
"""
PAUSE = 0.3  # seconds between engines: OpenMP threads spin for up to 0.2 s after their work


def prompt(model: str, length: int) -> list[int]:
    """`length` token ids of plain English in the model's own vocabulary (the text repeats as needed)."""
    from crucible.model.model import open_checkpoint

    ids = open_checkpoint(model).load_tokenizer().encode(TEXT)
    return (ids * (length // len(ids) + 1))[:length]


def _context(model: str) -> int:
    from crucible.model.model import open_checkpoint

    return open_checkpoint(model).config.context


def _names(modes: Sequence[str], against: Sequence[str]) -> list[str]:
    against = list(dict.fromkeys(ALIASES.get(peer, peer) for peer in against))
    unknown = [peer for peer in against if peer not in PEERS]
    if unknown:
        raise InputError(
            f"unknown peer {unknown[0]!r} for a whole model; choose from {', '.join((*PEERS, *ALIASES))}"
        )
    names = [f"crucible {mode}" for mode in modes]
    missing = [name for name in names if name not in ENGINES]
    if missing or not names:
        raise InputError(f"unknown mode in {list(modes)}; choose f32, int8 or both")
    return [*names, *against]


def run(
    task: str,
    model: str,
    modes: Sequence[str] = ("f32", "int8"),
    against: Sequence[str] = (),
    length: int = 512,
    steps: int = 64,
    rounds: int = 5,
    threads: int = 2,
    peers_python: str = sys.executable,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """`task` prefill: `length` prompt tokens a second; decode: greedy steps a second after `length` tokens.

    A peer that cannot load is left out and named in the outcome; `say` gets the one line that tells why.
    """
    if task not in ("prefill", "decode"):
        raise InputError(f"unknown task {task!r}; choose prefill or decode")
    names = _names(modes, against)
    positions = length + (steps + 1 if task == "decode" else 1)
    if positions > (context := _context(model)):
        wanted = f"{length} prompt token{'s' * (length != 1)}" + (
            f" and {steps} steps" if task == "decode" else ""
        )
        lower = "--length or --steps" if task == "decode" else "--length"
        raise InputError(f"{wanted} do not fit the context of {model}, {context} tokens; lower {lower}")
    ids = prompt(model, length)
    absent: list[tuple[str, str]] = []
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in names:
            python = peers_python if name in PEERS else sys.executable
            say(f"loading {name}")
            try:
                if name == "llama.cpp" and positions > LLAMA_CPP_CONTEXT:
                    raise UnavailableError(f"it is given a context of {LLAMA_CPP_CONTEXT} tokens")
                workers[name] = stack.enter_context(Worker(name, model, threads, python))
            except UnavailableError as error:
                if name not in PEERS:
                    raise
                say(f"without {name}: {error}")
                absent.append((name, str(error)))
        chosen: dict[str, list[int]] = {}

        def timed(name: str) -> Callable[[], float]:
            def sample() -> float:
                if task == "prefill":
                    return length / workers[name].ask("prefill", ids=ids)["seconds"]
                answer = workers[name].ask("decode", ids=ids, steps=steps)
                chosen[name] = answer["tokens"]
                return steps / answer["seconds"]

            return sample

        say(f"{rounds} interleaved rounds of {', '.join(workers)}")
        samples = interleave({name: timed(name) for name in workers}, rounds, PAUSE)
        first = next(iter(workers))
        contenders = []
        for name, worker in workers.items():
            facts = {
                "peak GB": round(worker.ask("memory")["peak_bytes"] / 1e9, 3),
                "load s": round(worker.load_seconds, 2),
                "version": worker.version,
            }
            if task == "decode":
                facts[f"tokens as {first}"] = _agreement(chosen[first], chosen[name])
            contenders.append(
                Contender(name, worker.arithmetic, "tok/s", tuple(samples[name]), name not in PEERS, facts)
            )
    what = f"{length} prompt tokens" if task == "prefill" else f"{steps} greedy steps after {length} tokens"
    return Outcome(
        f"{task} of {model}: {what}, {threads} threads",
        tuple(contenders),
        absent=tuple(absent),
        stopped=len(samples[first]) < rounds,
    )


def _agreement(a: Sequence[int], b: Sequence[int]) -> str:
    """How many leading tokens agree, as "n of total": a sign that two engines run the same model."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return f"{same} of {len(a)}"
