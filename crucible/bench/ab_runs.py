"""Rounds of fresh services under the same requests, their outputs held to one another burst by burst."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crucible.bench.ab_workloads import Workload
from crucible.bench.rounds import order
from crucible.errors import CrucibleError
from crucible.evidence.watch import Envelope, Watch
from crucible.service.load import client
from crucible.service.load.samples import Sample
from crucible.service.started import Side


class Broken(CrucibleError):
    """A side gave another token, or did not answer: nothing after it is worth a measurement."""


@dataclass(frozen=True)
class Run:
    """One service process: its round, its side, bursts of samples by workload, envelope and start."""

    round: int
    side: str
    bursts: dict[str, list[list[Sample]]]
    envelope: Envelope
    start_seconds: float


@dataclass(eq=False)
class Oracle:
    """The tokens of each request as the first side gave them; every later answer must be the same."""

    seen: dict[tuple[str, int, int], tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    compared: int = 0

    def hold(self, who: str, workload: str, burst: Sequence[Sample]) -> None:
        """Compare one burst; Broken names request, position and both tokens of the first difference."""
        for number, sample in enumerate(burst):
            prompt = f"{sample.prompt_tokens} prompt tokens"
            where = f"{workload}, burst {sample.burst}, request {number} ({prompt})"
            if not sample.good:
                raise Broken(f"{who} did not answer {where}: {sample.error or sample.status}")
            first, tokens = self.seen.setdefault((workload, sample.burst, number), (who, sample.tokens))
            if first == who:
                continue
            pairs = enumerate(zip(tokens, sample.tokens, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(sample.tokens)))
            if tokens != sample.tokens:
                a, b = (t[at] if at < len(t) else "its end" for t in (tokens, sample.tokens))
                raise Broken(f"token {at} of {where} is {b} by {who}, and {a} by {first}")
            self.compared += len(tokens)


@dataclass(eq=False)
class Campaign:
    """Runs of all sides; the first side is the baseline. `broken` says why it ended early, `stopped` that a
    person ended it: the rounds that are complete stay."""

    sides: Sequence[Side]
    workloads: Sequence[Workload]
    runs: list[Run] = field(default_factory=list)
    oracle: Oracle = field(default_factory=Oracle)
    broken: str = ""
    stopped: bool = False

    def run(
        self,
        rounds: int,
        say: Callable[[str], None] = lambda text: None,
        progress: Callable[[], None] = lambda: None,
    ) -> "Campaign":
        """A fresh process a side and round, in turn and back: A B, B A, A B. Returns itself."""
        try:
            for number in range(rounds):
                done = []
                for side in order(list(self.sides), number):
                    say(f"round {number + 1} of {rounds}, {side.name}")
                    done.append(self._one(side, number, progress))
                self.runs += done
        except Broken as error:
            self.broken = str(error)
        except KeyboardInterrupt:
            if not self.runs:
                raise
            self.stopped = True
        return self

    def of(self, side: str) -> list[Run]:
        """A side's runs, in the order of the rounds."""
        return [run for run in self.runs if run.side == side]

    def _one(self, side: Side, number: int, progress: Callable[[], None]) -> Run:
        who = f"{side.name} in round {number + 1}"
        with side.running() as server:
            bursts: dict[str, list[list[Sample]]] = {}
            with Watch() as watch:
                for workload in self.workloads:
                    work = self._work(who, server.target, workload, progress)
                    bursts[workload.name] = client.wait(work)
            return Run(number, side.name, bursts, watch.envelope, server.seconds)

    async def _work(self, who: str, to, workload: Workload, progress) -> list[list[Sample]]:
        log, taken = client.Log(), []
        for burst in range(workload.all_bursts):
            warmup = burst < workload.warmups
            samples = await client.run(to, workload.asks(burst), log, burst, warmup)
            self.oracle.hold(who, workload.name, samples)
            taken.append(samples)
            progress()
        return taken
