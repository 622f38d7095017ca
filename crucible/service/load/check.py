"""The client beside an outside one on the same service: a plain loop over the openai SDK's completions."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from crucible.errors import UnavailableError
from crucible.evidence.environment import capture
from crucible.evidence.record import Record, Series
from crucible.evidence.statistics import bracket, paired_ratios
from crucible.service.load import client
from crucible.service.load.asks import Ask
from crucible.service.load.client import Log
from crucible.service.load.plan import Plan
from crucible.service.load.samples import Sample, digest, throughput
from crucible.service.load.summary import failures
from crucible.service.load.target import Target

PEERS = ("openai",)
AGREE = 0.03  # largest difference of two clients, as a share
METRICS: dict[str, tuple[str, Callable[[Sequence[Sample]], float]]] = {
    "TTFT": ("ms", lambda burst: 1e3 * float(np.median([s.ttft for s in burst]))),
    "end to end": ("ms", lambda burst: 1e3 * float(np.median([s.end_to_end for s in burst]))),
    "tok/s": ("tok/s", throughput),
}


@dataclass(frozen=True)
class Found:
    """Timed bursts of both clients; burst i of one ran right before or after burst i of the other.

    `stopped`: a person ended it, and these are the pairs that were complete.
    """

    name: str
    sdk: str
    ours: list[list[Sample]] = field(default_factory=list)
    theirs: list[list[Sample]] = field(default_factory=list)
    stopped: bool = False

    def cut(self) -> "Found":
        """The pairs that are complete, of a check that was stopped."""
        pairs = min(len(self.ours), len(self.theirs))
        return replace(self, ours=self.ours[:pairs], theirs=self.theirs[:pairs], stopped=True)

    @property
    def failed(self) -> dict[str, int]:
        """Requests of either that were not answered, by what was said."""
        return failures([s for burst in (*self.ours, *self.theirs) for s in burst])

    def values(self, metric: str) -> tuple[list[float], list[float]]:
        """A value a burst, ours and theirs."""
        of = METRICS[metric][1]
        return [of(burst) for burst in self.ours], [of(burst) for burst in self.theirs]

    @property
    def differences(self) -> dict[str, float]:
        """Median over the bursts of ours / theirs - 1; empty where a request failed."""
        if self.failed:
            return {}
        return {name: float(np.median(paired_ratios(*self.values(name)))) - 1 for name in METRICS}

    @property
    def agrees(self) -> bool:
        """All were answered and no metric differs by more than AGREE."""
        return not self.failed and all(abs(d) <= AGREE for d in self.differences.values())

    def text(self) -> str:
        """The table and its verdict."""
        rows = [("median [least, most] of the bursts", "crucible load", f"openai {self.sdk}", "difference")]
        for name, difference in self.differences.items():
            shown = (f"{(b := bracket(v)).median:.4g} [{b.low:.4g}, {b.high:.4g}]" for v in self.values(name))
            rows.append((f"{name}, {METRICS[name][0]}", *shown, f"{100 * difference:+.2f} %"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [f"failed: {why} (x{count})" for why, count in self.failed.items()]
        said = f"the clients agree within {AGREE:.0%}" if self.agrees else f"not within {AGREE:.0%}"
        lines.append(f"{said}: {self.name}, openai face, bursts of both in turn")
        if self.stopped:
            lines.append(f"interrupted; the figures are those of the first {len(self.ours)} pairs of bursts")
        if any(len(burst) > 1 for burst in self.ours):
            lines.append(
                "requests sent at once share a step of the engine or miss it by milliseconds, which differ "
                "between clients; bursts of one request (1x256) compare the clients alone"
            )
        return "\n".join(lines)

    def to_record(self) -> Record:
        """Kind `load-check`; counts are of requests."""
        count = sum(map(len, self.ours)) * 2
        good = count - sum(self.failed.values())
        found = [] if self.failed else [(name, *self.values(name)) for name in METRICS]
        return Record(
            kind="load-check",
            claim=f"the load client's times are within {AGREE:.0%} of an outside client's",
            compared=f"crucible load and a loop over openai {self.sdk}'s completions stream, {self.name}",
            verdict="measured" if self.stopped else "pass" if self.agrees else "fail",
            elements=count,
            finite=good,
            nonzero=good,
            facts={f"{name}, difference": round(d, 5) for name, d in self.differences.items()}
            | {"pairs of bursts": len(self.ours), "interrupted": self.stopped},
            samples=tuple(
                Series(f"{name}, {who}", METRICS[name][0], tuple(values))
                for name, *both in found
                for who, values in zip(("crucible load", "openai SDK"), both, strict=True)
            ),
            not_claimed=("agreement on another machine or under another load",),
            environment=capture("cpu"),
        )


def begin(plan: Plan) -> Found:
    """Nothing yet: what `run` fills."""
    return Found(plan.name, _sdk_version())


async def run(
    found: Found, to: Target, plan: Plan, other: Plan, progress: Callable[[], object] = lambda: None
) -> None:
    """The bursts of `plan` by this client and those of `other` by the SDK, in turn, both on the openai face,
    into `found`, which keeps what is done whatever happens.

    `other` has the same lengths and other prompts: a service that shares prefixes would answer the same
    ones faster the second time.
    """
    to, log = replace(to, face="openai"), Log(heard=lambda _: progress())
    async with _sdk(to) as outside:
        for number, pair in enumerate(zip(plan.bursts, other.bursts, strict=True)):
            warmup = number < plan.warmups

            async def own(burst=pair[0], number=number, warmup=warmup):
                taken = await client.run(to, burst, log, number, warmup)
                if not warmup:
                    found.ours.append(taken)

            async def peer(burst=pair[1], number=number, warmup=warmup):
                started = (_completion(outside, to.model, ask, log, number, warmup) for ask in burst)
                taken = list(await asyncio.gather(*started))
                if not warmup:
                    found.theirs.append(taken)

            for turn in (own, peer) if number % 2 == 0 else (peer, own):
                await turn()


def _sdk_version() -> str:
    try:
        return version("openai")
    except PackageNotFoundError:
        how = f"{sys.executable} -m pip install openai"
        raise UnavailableError(f"the openai SDK is not installed; run: {how}") from None


def _sdk(to: Target) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{to.url}/v1", api_key=to.api_key or "none", max_retries=0)


async def _completion(outside: Any, model: str, ask: Ask, log: Log, burst: int, warmup: bool) -> Sample:
    """One request as a user of the SDK would write it, with a clock."""
    times, text, usage, error = [], "", None, ""
    sent = time.perf_counter()
    try:
        stream = await outside.completions.create(
            model=model,
            prompt=list(ask.prompt),
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].text:
                times.append(time.perf_counter() - log.began)
                text += chunk.choices[0].text
            if chunk.usage is not None:
                usage = chunk.usage.completion_tokens
    except Exception as failed:  # whatever the SDK raises is this request's failure
        error = f"{type(failed).__name__}: {failed}"
    sample = Sample(
        label=ask.label,
        burst=burst,
        warmup=warmup,
        prompt_tokens=len(ask.prompt),
        planned=None,
        sent=sent - log.began,
        end=time.perf_counter() - log.began,
        status=0 if error else 200,
        times=tuple(times),
        events=tuple(range(len(times))),
        digest=digest((), text),
        error=error,
        usage=usage,
    )
    log.add(sample)
    return sample
