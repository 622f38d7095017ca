"""How the second run of an answer compares with what was kept of the first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crucible.files import brief
from crucible.service.tui.source import End, State
from crucible.service.tui.transcript import Turn

_CUT = {"cancelled": "stopped", "failed": "broken off"}
_BESIDE = 12  # characters that are shown from the place on where two texts differ


@dataclass(frozen=True)
class Difference:
    """The first thing that is not the same, and how either run spells it."""

    what: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.what}: {self.got}, was {self.expected}"


@dataclass(frozen=True)
class Verdict:
    """`equal`, or the first Difference.

    `cut`: how the first run was cut off, so that it was compared as a beginning. `elsewhere`: that another
    model or fingerprint answered, so that equal bits are not promised.
    """

    difference: Difference | None = None
    cut: str = ""
    elsewhere: tuple[Difference, ...] = ()

    @property
    def equal(self) -> bool:
        """All that was kept of the answer is the same."""
        return self.difference is None

    def __str__(self) -> str:
        said = "✓ equal" if self.equal else f"✗ differs {self.difference}"
        beginning = f" as a beginning (the answer was {self.cut})" if self.equal and self.cut else ""
        behind = f" ({'; '.join(map(str, self.elsewhere))})" if self.elsewhere else ""
        return said + beginning + behind


def compare(turn: Turn, end: End, model: str, by: str) -> Verdict:
    """The Verdict on a second run; `model` gave the first answer, `by` the second one.

    An answer that was cut off is compared as a beginning of the second one. What a turn does not say
    (fingerprint and random state None) is not compared.
    """
    elsewhere = [
        Difference(what, brief(was), brief(now))
        for what, was, now in (("model", model, by), ("fingerprint", turn.fingerprint, end.fingerprint))
        if was is not None and was != now
    ]
    first = next(_differences(turn, end), None)
    return Verdict(first, _CUT.get(turn.finish_reason, ""), tuple(elsewhere))


def first_token(expected: Sequence[int], got: Sequence[int]) -> Difference | None:
    """Where two lists of tokens part, if they do."""
    for at in range(max(len(expected), len(got))):
        was, now = (str(side[at]) if at < len(side) else "the end" for side in (expected, got))
        if was != now:
            return Difference(f"at token {at}", was, now)
    return None


def _differences(turn: Turn, end: End) -> Iterator[Difference]:
    cut, kept = turn.finish_reason in _CUT, len(turn.tokens)
    if turn.prompt_tokens != end.prompt_tokens:
        yield Difference("in prompt tokens", str(turn.prompt_tokens), str(end.prompt_tokens))
    if tokens := first_token(turn.tokens, end.tokens[:kept] if cut else end.tokens):
        yield tokens
    if text := _first_character(turn.text, end.text[: len(turn.text)] if cut else end.text):
        yield text
    if not cut and turn.finish_reason != end.finish_reason:
        yield Difference("in finish reason", turn.finish_reason, end.finish_reason)
    now = end.random_state
    if cut:
        now = State(now.seed, min(now.next_draw, kept))
    if turn.random_state not in (None, now):
        yield Difference("in random state", _state(turn.random_state), _state(now))


def _first_character(expected: str, got: str) -> Difference | None:
    if expected == got:
        return None
    both = zip(expected, got, strict=False)
    at = next((at for at, (was, now) in enumerate(both) if was != now), min(len(expected), len(got)))
    was, now = (brief(side[at : at + _BESIDE]) if at < len(side) else "the end" for side in (expected, got))
    return Difference(f"in text at character {at}", was, now)


def _state(state: State) -> str:
    seed = "no seed" if state.seed is None else f"seed {state.seed}"
    return f"{seed} and next draw {state.next_draw}"
