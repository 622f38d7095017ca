"""What HTTP costs: the same requests streamed through a running service and through an engine in process."""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median

from crucible.bench.engine import parse
from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import WARMUPS, interleave
from crucible.engine.engine import Engine
from crucible.engine.events import Result, Token
from crucible.engine.request import Request
from crucible.engine.scheduler import Limits, pages_for
from crucible.errors import UnavailableError
from crucible.evidence.statistics import bracket, paired_ratios
from crucible.model.model import Model
from crucible.service.channel.garbage import settle
from crucible.service.load import client
from crucible.service.load.asks import Ask, closed
from crucible.service.load.samples import throughput
from crucible.service.load.target import Target

SHAPES = {"cpu": "16x32", "cuda": "16x16"}  # streams x prompt tokens
ALLOWED = {"cpu": 10.0, "cuda": 15.0}  # percent of the bare engine's tokens a second
ALLOWED_TTFT = {"cuda": 3.0}  # milliseconds at the median request; a cpu takes seconds for the prompts
_SEED = 17
_START = 600.0  # seconds that a service may take until it listens
ENTRY = "from crucible.cli.main import main; main()"


@dataclass(frozen=True)
class Burst:
    """One burst: tokens a second of all streams, the median request's time to its first token, the tokens."""

    rate: float
    ttft: float
    tokens: list[list[int]]


@contextlib.contextmanager
def served(model: str, mode: str, device: str, limits: Limits) -> Iterator[Target]:
    """A `crucible serve` of its own, ended afterwards; UnavailableError with its last words if it cannot."""
    with tempfile.TemporaryDirectory(prefix="crucible-bench-") as folder:
        port, said = Path(folder) / "port", Path(folder) / "said"
        options = {
            "--model": model, "--mode": mode, "--device": device, "--port": 0, "--port-file": port,
            "--queue": limits.queue, "--pages": limits.pages, "--log-level": "warning",
        }  # fmt: skip
        words = [str(word) for pair in options.items() for word in pair]
        command = [sys.executable, "-c", ENTRY, "serve", "--no-prefix-sharing", *words]
        with said.open("w") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            until = time.monotonic() + _START
            while not port.exists():
                if process.poll() is not None or time.monotonic() > until:
                    last = (said.read_text().strip().splitlines() or ["it said nothing"])[-1]
                    raise UnavailableError(f"the service did not start: {last}")
                time.sleep(0.05)
            yield Target("127.0.0.1", int(port.read_text()))
        finally:
            process.terminate()
            process.wait()


def engine_burst(engine: Engine, asks: Sequence[Ask]) -> Burst:
    """The requests straight through an engine at their times, heard by a listener in its own thread."""
    work = [
        (key, engine.check(Request(ask.prompt, ask.max_tokens, ignore_eos=True)))
        for key, ask in enumerate(asks)
    ]
    sent: dict[int, float] = {}
    first: dict[int, float] = {}
    results: dict[int, Result | Exception] = {}
    over = threading.Event()

    def listen(news: list) -> None:
        now = time.perf_counter()
        for key, event in news:
            if isinstance(event, Token):
                first.setdefault(key, now)
            else:
                results[key] = event
        if len(results) == len(work):
            over.set()

    start = time.perf_counter()
    for at, due in groupby(work, lambda item: asks[item[0]].at):
        time.sleep(max(0.0, start + at - time.perf_counter()))
        together = list(due)
        sent |= dict.fromkeys((key for key, _ in together), time.perf_counter())
        engine.submit_all(together, listen)
    over.wait()
    seconds = time.perf_counter() - start
    made = []
    for key in range(len(work)):
        if isinstance(results[key], Exception):
            raise results[key]
        made.append(results[key].tokens)
    return Burst(sum(map(len, made)) / seconds, median(first[key] - sent[key] for key in sent), made)


def service_burst(to: Target, asks: Sequence[Ask]) -> Burst:
    """The requests over HTTP at their times, those of one time on connections that are open already."""
    samples = client.wait(client.run(to, asks, client.Log()))
    broken = [sample.error for sample in samples if not sample.good]
    if broken:
        raise UnavailableError(f"a request to the service failed: {broken[0]}")
    tokens = [list(sample.tokens) for sample in samples]
    return Burst(throughput(samples), median(sample.ttft for sample in samples), tokens)


def run(
    name: str,
    model: Model,
    shape: str,
    tokens: int,
    rounds: int,
    apart: float = 0.0,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Outcome, Outcome]:
    """(tokens a second, time to the first token) of both; `name` is what `model` was opened by.

    Greedy, without prefix sharing on either side; each stream begins `apart` seconds after the one before.
    UnavailableError where the two do not give the same tokens: then there is nothing to compare.
    """
    count, length = parse(shape)
    asks = [replace(ask, at=i * apart) for i, ask in enumerate(closed([length] * count, tokens, _SEED, 0))]
    limits = Limits(queue=count, pages=count * (pages_for(length + tokens) + 1))
    device = model.device.name
    with (
        served(name, model.mode, device, limits) as to,
        Engine(model, limits, share_prefixes=False) as engine,
    ):
        settle()  # as the service does: no collection of what a load made falls into a burst
        say(f"{rounds} interleaved rounds of {shape}: service, engine")
        contenders = {
            "service": partial(service_burst, to, asks),
            "engine": partial(engine_burst, engine, asks),
        }
        bursts = interleave(contenders, rounds, warmups=WARMUPS[model.device.name])
    if any(burst.tokens != bursts["engine"][0].tokens for taken in bursts.values() for burst in taken):
        raise UnavailableError("service and engine gave other tokens, so their times compare nothing")
    title = f"{shape} on {device}, {model.name} {model.mode}, {tokens} tokens each"
    title += f", {1000 * apart:g} ms apart" if apart else ""
    rates = _rates(title, bursts, rounds, ALLOWED.get(device))
    return rates, _times(title, bursts, rounds, ALLOWED_TTFT.get(device))


def _rates(title: str, bursts: dict[str, list[Burst]], rounds: int, allowed: float | None) -> Outcome:
    rates = {name: tuple(burst.rate for burst in taken) for name, taken in bursts.items()}
    lost = [100 * (1 - ratio) for ratio in paired_ratios(rates["service"], rates["engine"])]
    facts = {"percent of the engine's lost": round(bracket(lost).median, 2)}
    facts |= {} if allowed is None else {"percent allowed": allowed}
    return _outcome(title, rates, "tok/s", facts, rounds, higher_is_better=True)


def _times(title: str, bursts: dict[str, list[Burst]], rounds: int, allowed: float | None) -> Outcome:
    times = {name: tuple(1000 * burst.ttft for burst in taken) for name, taken in bursts.items()}
    more = [a - b for a, b in zip(times["service"], times["engine"], strict=True)]
    facts = {"ms more than the engine": round(bracket(more).median, 3)}
    facts |= {} if allowed is None else {"ms allowed": allowed}
    return _outcome(f"time to the first token, {title}", times, "ms, p50", facts, rounds, False)


def _outcome(title, samples, unit, facts, rounds, higher_is_better) -> Outcome:
    through = {"service": "HTTP, server-sent events", "engine": "a listener in its process"}
    found = [
        Contender(name, through[name], unit, taken, name == "service", facts if name == "service" else {})
        for name, taken in samples.items()
    ]
    stopped = len(samples["engine"]) < rounds
    return Outcome(title, tuple(found), higher_is_better=higher_is_better, stopped=stopped)
