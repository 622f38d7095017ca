"""A request inside the engine: its tokens so far, what of them is stored, and how its text grows."""

import time
from bisect import insort
from operator import attrgetter

from crucible.engine.events import Logprobs, Result, Timings, Token
from crucible.engine.request import Checked
from crucible.engine.runner import Outcome, Sampling
from crucible.engine.stops import StopStrings
from crucible.kv.prefix import NO_MATCH, Match
from crucible.model.generate import RandomState
from crucible.model.tokenizer import StreamDecoder


class Job:
    """One request on its way; ids ascend in the order of arrival.

    `known` are prompt and generated tokens, of which the first `stored` have K and V; rows up to `end`
    are prefilled (again, after a preemption), later ones decoded one at a time.
    """

    __slots__ = (
        "admitted", "cached_rows", "decoder", "digests", "end", "first_token", "handle", "id", "known",
        "logprobs", "match", "pages", "pieces", "preemptions", "prompt_rows", "request", "shared", "slot",
        "stops", "stored", "submitted",
    )  # fmt: skip

    def __init__(self, id: int, request: Checked, decoder: StreamDecoder, handle=None):
        self.id, self.request, self.decoder, self.handle = id, request, decoder, handle
        self.known = list(request.prompt)
        self.prompt_rows = len(self.known)
        self.stops = StopStrings(request.stop_strings) if request.stop_strings else None
        self.pieces: list[str] = []
        self.digests: list[str] = []
        self.logprobs: list[Logprobs] = []
        self.match: Match = NO_MATCH
        self.slot = -1
        self.stored = self.end = self.pages = self.shared = 0
        self.cached_rows = self.preemptions = 0
        self.submitted = time.perf_counter()
        self.admitted: float | None = None
        self.first_token: float | None = None

    @property
    def made(self) -> int:
        """Tokens generated so far."""
        return len(self.known) - self.prompt_rows

    def sampling(self) -> Sampling:
        """How the next token is chosen: by the request and the number of its draw, and by nothing else."""
        request = self.request
        return Sampling(request.params, len(self.known) - self.prompt_rows, request.logprobs, request.digests)

    def accept(self, outcome: Outcome) -> tuple[Token, str | None, int | str | None]:
        """Add a chosen token; (its event, the reason if the request ends with it, what stopped it)."""
        token, kept, mark, found = outcome[:4]
        request, known, stops = self.request, self.known, self.stops
        index = len(known) - self.prompt_rows
        known.append(token)
        if mark is not None:
            self.digests.append(mark)
        if found is not None:
            self.logprobs.append(found)
        text = self.decoder.push(token)
        if stops is not None:
            text = stops.push(text)
        reason: str | None = None
        by: int | str | None = None
        if token in request.stop_tokens:
            reason, by = "stop", token
        elif index + 1 == request.max_tokens:
            reason = "length"
        if reason is not None:
            rest = self.decoder.finish()
            text += rest if stops is None else stops.push(rest)
        if stops is not None:
            if stops.found is not None:
                reason, by = "stop", stops.found
            elif reason is not None:
                text += stops.finish()
        if index == 0:
            self.first_token = time.perf_counter()
        self.pieces.append(text)
        return Token(index, token, text, kept, mark, found), reason, by

    def result(self, reason: str, by: int | str | None, kv: tuple[str | None, str | None]) -> Result:
        """The end of the request."""
        request, made, now = self.request, self.made, time.perf_counter()
        greedy = request.params.greedy
        return Result(
            id=self.id,
            text="".join(self.pieces),
            tokens=self.known[self.prompt_rows :],
            prompt_tokens=request.prompt,
            finish_reason=reason,
            stopped_by=by,
            random_state=RandomState(None if greedy else request.params.seed, 0 if greedy else made),
            logits_digests=self.digests if request.digests else None,
            k_digest=kv[0],
            v_digest=kv[1],
            logprobs=self.logprobs if request.logprobs is not None else None,
            cached_rows=self.cached_rows,
            preemptions=self.preemptions,
            timings=Timings(
                (self.admitted or now) - self.submitted,
                None if self.first_token is None else self.first_token - self.submitted,
                now - self.submitted,
            ),
        )


def insert(jobs: list[Job], job: Job) -> None:
    """Put a job where its arrival belongs."""
    insort(jobs, job, key=attrgetter("id"))
