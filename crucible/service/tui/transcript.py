"""What was said, in a form that can be saved, read again and run again."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from crucible.errors import InputError
from crucible.files import brief, check_writable, read_text, shown
from crucible.sampling.params import SEED_LIMIT
from crucible.service.tui.source import End, Sampling, State

FORMAT = "crucible chat 1"
Finish = Literal["", "stop", "length", "cancelled", "failed"]


@dataclass(eq=False)
class Turn:
    """A question and its answer.

    The prompt was the system message, the turns from number `since` up to this one, and `user`; `sampling`
    holds the seed and the limit of tokens that the answer really had. finish_reason is empty while the
    answer runs; cancelled and failed answers keep what had come. Times are seconds from the question.
    """

    user: str
    system: str | None
    since: int
    sampling: Sampling
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    finish_reason: Finish = ""
    fingerprint: str | None = None
    random_state: State | None = None
    first_token_seconds: float | None = None
    seconds: float | None = None

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    @property
    def tokens_per_second(self) -> float | None:
        """Rate after the first token; None where there is no second one."""
        if self.first_token_seconds is None or self.seconds is None or len(self.tokens) < 2:
            return None
        spent = self.seconds - self.first_token_seconds
        return (len(self.tokens) - 1) / spent if spent > 0 else None

    def finish(self, end: End) -> None:
        """Take over the end of the answer."""
        self.text, self.tokens = end.text, list(end.tokens)
        self.prompt_tokens, self.finish_reason = end.prompt_tokens, end.finish_reason
        self.fingerprint, self.random_state = end.fingerprint, end.random_state

    def stop(self, reason: Finish) -> None:
        """Keep what came of an answer that did not reach its end."""
        draws = 0 if self.sampling.greedy else len(self.tokens)
        self.finish_reason, self.random_state = reason, State(self.sampling.seed, draws)


@dataclass
class Transcript:
    """The turns of a chat and the model that answered."""

    model: str
    turns: list[Turn] = field(default_factory=list)
    format: Literal["crucible chat 1"] = FORMAT

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    def messages(self, index: int) -> list[dict[str, str]]:
        """The messages that the answer of turn `index` answers."""
        turn = self.turns[index]
        said = [{"role": "system", "content": turn.system}] if turn.system else []
        for before in self.turns[turn.since : index]:
            said += [{"role": "user", "content": before.user}, {"role": "assistant", "content": before.text}]
        return [*said, {"role": "user", "content": turn.user}]

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all; InputError where that cannot be done."""
        check_writable(path)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")
            os.replace(beside, path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise InputError(f"cannot write {shown(path)}: {error.strerror or error}") from None


def load(path: Path) -> Transcript:
    """Read a transcript; InputError names the file and the first field that is wrong."""
    from pydantic import TypeAdapter, ValidationError

    try:
        transcript = TypeAdapter(Transcript).validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        reason = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{shown(path)} is no transcript of a chat: {where}: {reason}") from None
    for index, turn in enumerate(transcript.turns):
        if (wrong := next(_impossible(turn, index, transcript.turns[:index]), None)) is not None:
            raise InputError(f"{shown(path)} is no transcript of a chat: turn {index} {wrong}")
    return transcript


def _impossible(turn: Turn, index: int, before: list[Turn]) -> Iterator[str]:
    """What is wrong with a turn that no chat can have had."""
    sampling, state = turn.sampling, turn.random_state
    least = before[-1].since if before else 0
    if not least <= turn.since <= index:
        yield f"cannot begin at turn {brief(turn.since)}; give {least} to {index}"
    if not turn.finish_reason:
        yield "has no end"
    if sampling.greedy != (sampling.seed is None):
        have = "is greedy and has a seed" if sampling.greedy else "is sampled and has no seed"
        yield f"{have}; it cannot be run again"
    if any(token < 0 for token in turn.tokens):
        yield f"has the token {brief(min(turn.tokens))}; tokens are at least 0"
    if len(turn.tokens) > sampling.max_tokens:
        yield f"has {len(turn.tokens)} tokens, more than its max_tokens {sampling.max_tokens}"
    if turn.prompt_tokens < 1:
        yield f"has {brief(turn.prompt_tokens)} prompt tokens; a prompt has at least 1"
    if state is not None and not 0 <= state.next_draw < SEED_LIMIT:
        yield f"has the next draw {brief(state.next_draw)}; it must be 0 to {SEED_LIMIT - 1}"
    if state is not None and state.seed is not None and not 0 <= state.seed < SEED_LIMIT:
        yield f"has the random state's seed {brief(state.seed)}; it must be 0 to {SEED_LIMIT - 1}"
    for name in ("first_token_seconds", "seconds"):
        value = getattr(turn, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield f"has {value} {name}; it must be finite and at least 0"
