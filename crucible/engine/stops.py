"""Stop strings in a text that arrives in pieces: where the text ends does not depend on the pieces."""

from collections.abc import Sequence


class StopStrings:
    """Cuts a text before the stop string that is complete first (of those, the one that began first).

    `push` returns the text that no stop string can take back any more; `found` is the string that ended
    the text, or None. What comes after it is dropped.
    """

    def __init__(self, strings: Sequence[str]):
        self._strings = tuple(strings)
        self._letters = {s[0] for s in strings}  # a stop string begins with one of these
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """The text that `piece` makes final."""
        if not self._held and self._letters.isdisjoint(piece) and self.found is None:
            return piece
        if self.found is not None:
            return ""
        text = self._held + piece
        hits = [(text.find(s) + len(s), text.find(s), s) for s in self._strings if s in text]
        if hits:
            _, start, self.found = min(hits)
            self._held = ""
            return text[:start]
        keep = max(_overlap(text, s) for s in self._strings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without completing it."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
