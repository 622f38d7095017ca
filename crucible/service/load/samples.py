"""What a client saw of one request, the times that follow from it by stated formulas, and raw files."""

import dataclasses
import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from crucible.errors import InputError
from crucible.files import check_writable, open_regular, shown

FORMAT, VERSION = "crucible-load", 1
# What every table of client times means; printed below them and kept in records.
FORMULAS = {
    "TTFT": "arrival of the first token - sending of the request, on an open connection",
    "gap": "arrival of tokens - arrival of those before; tokens of one event, or of one read, share a time",
    "end to end": "arrival of the last byte - sending of the request",
    "tok/s": "tokens of all requests of a burst / (last end - first sending)",
    "tok/s a stream": "(tokens - those of the first arrival) / (last token - first token)",
}


@dataclass(frozen=True)
class Sample:
    """One request as the client saw it; seconds on one clock, 0 where the run began.

    `planned`: when it should have been sent (None for one that waited for another's tokens). `times` has an
    arrival a token; `events` the number of the event that brought it, so tokens of one number share one
    time. status 0: no answer came, `error` says why. `server`: timings that the server itself reports
    (queued, first_token, total). `tokens` are ids, empty on a face that gives text; `digest` covers tokens,
    or the text where there are none. `usage`: tokens that the server counts, where events do not tell.
    """

    label: str
    burst: int
    warmup: bool
    prompt_tokens: int
    planned: float | None
    sent: float
    end: float
    status: int
    times: tuple[float, ...] = ()
    events: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    digest: str = ""
    seed: int | None = None
    finish: str = ""
    error: str = ""
    server: Mapping[str, float] = field(default_factory=dict)
    usage: int | None = None

    @property
    def count(self) -> int:
        """Generated tokens."""
        return len(self.times) if self.usage is None else self.usage

    @property
    def good(self) -> bool:
        """It was answered to its end."""
        return self.status == 200 and not self.error and bool(self.times)

    @property
    def ttft(self) -> float:
        """Seconds: arrival of the first token - sending."""
        return self.times[0] - self.sent

    @property
    def end_to_end(self) -> float:
        """Seconds: arrival of the last byte - sending."""
        return self.end - self.sent

    @property
    def arrivals(self) -> tuple[float, ...]:
        """Seconds at which tokens came, one for tokens that came together: in an event, or in one read."""
        return tuple(dict.fromkeys(self.times))

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds between arrivals; of tokens that came together only the first has a gap of its own."""
        return tuple(np.diff(self.arrivals).tolist())

    @property
    def shared(self) -> int:
        """Tokens that came together with the token before."""
        return len(self.times) - len(self.arrivals)

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first arrival; None where all came together."""
        later = sum(at > self.times[0] for at in self.times)
        return later / (self.times[-1] - self.times[0]) if later else None


def throughput(samples: Sequence[Sample]) -> float:
    """Tokens a second of requests that ran together: all tokens / (last end - first sending)."""
    if not samples:
        raise InputError("no request of the burst was answered, so it has no tokens a second")
    tokens = sum(s.count for s in samples)
    return tokens / (max(s.end for s in samples) - min(s.sent for s in samples))


def digest(tokens: Sequence[int], text: str = "") -> str:
    """blake2b-16 in hex, of the ids as little-endian int32, or of the text where no ids are known."""
    raw = np.asarray(tokens, "<i4").tobytes() if len(tokens) else text.encode()
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def save(path: Path | str, samples: Iterable[Sample], facts: Mapping[str, object] | None = None) -> Path:
    """Write samples as gzip JSON by an atomic rename; equal samples give equal bytes. Returns the path."""
    path = Path(path)
    check_writable(path)
    body = {
        "format": FORMAT,
        "version": VERSION,
        "facts": dict(facts or {}),
        "samples": [dataclasses.asdict(s) for s in samples],
    }
    packed = gzip.compress(json.dumps(body, allow_nan=False, separators=(",", ":")).encode(), 9, mtime=0)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(packed)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {shown(path)}: {error.strerror or error}") from None
    return path


def load(path: Path | str) -> tuple[list[Sample], dict[str, object]]:
    """(samples, facts) of a raw file; InputError for anything else."""
    try:
        with open_regular(path) as handle:
            body = json.loads(gzip.decompress(handle.read()))
        if body.get("format") != FORMAT or body.get("version") != VERSION:
            raise ValueError(f"it is not {FORMAT} version {VERSION}")
        return [_sample(one) for one in body["samples"]], body["facts"]
    except InputError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{shown(path)} is no file of raw samples: {error}") from None


def _sample(body: dict) -> Sample:
    for name in ("times", "events", "tokens"):
        body[name] = tuple(body[name])
    return Sample(**body)
