"""A question with its answer on the screen, and the line of facts below."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from crucible.service.tui.transcript import Turn
from crucible.service.tui.verdict import Verdict

_PICTURES = {c: 0x2400 + c for c in range(0x20) if c not in (0x09, 0x0A)}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F)), 0xFFFD)
_PICTURES |= dict.fromkeys(range(0x2066, 0x206A), 0xFFFD)
_ENDS = {"length": " (the limit)", "cancelled": " (stopped)", "failed": " (broken off)"}


def visible(text: str) -> str:
    """`text` for a terminal: control characters as pictures, so that none of them acts."""
    return text.expandtabs(4).translate(_PICTURES)


def facts(turn: Turn) -> list[str]:
    """What is known of an answer: seed, tokens, rate, time to the first token, how it ended."""
    sampling = turn.sampling
    found = [
        "greedy" if sampling.greedy else f"seed {sampling.seed}",
        f"{len(turn.tokens)} tokens{_ENDS.get(turn.finish_reason, '')}",
    ]
    if turn.tokens_per_second is not None:
        found.append(f"{turn.tokens_per_second:.1f}/s")
    if turn.first_token_seconds is not None:
        found.append(f"first {turn.first_token_seconds:.2f} s")
    return found


class Exchange(Vertical, can_focus=True):
    """Shows one Turn; `refresh_turn` after it has changed."""

    def __init__(self, turn: Turn):
        super().__init__()
        self.turn = turn
        self._verdict: Verdict | None = None
        self._note = ""

    def compose(self) -> ComposeResult:
        """Question, answer, facts."""
        yield Static(visible(self.turn.user), classes="question", markup=False)
        yield Static("", classes="answer", markup=False)
        yield Static("", classes="facts")

    def on_mount(self) -> None:
        """Show what there is."""
        self.refresh_turn()

    def refresh_turn(self) -> None:
        """Show the turn as it is now."""
        self.query_one(".answer", Static).update(visible(self.turn.text) or "…")
        self._show_facts()

    def mark(self, verdict: Verdict | None = None, note: str = "") -> None:
        """Show a verdict, or a note on what goes on, behind the facts."""
        self._verdict, self._note = verdict, note
        self._show_facts()

    @property
    def answer(self) -> str:
        """The answer as it stands on the screen."""
        return str(self.query_one(".answer", Static).content)

    @property
    def facts(self) -> str:
        """The line of facts as text."""
        return self._content().plain

    def _content(self) -> Content:
        line = Content(" · ".join(facts(self.turn)))
        if self._note:
            line = Content.assemble(line, " · ", (self._note, "$primary"))
        if self._verdict is not None:
            style = "$success" if self._verdict.equal else "$error"
            line = Content.assemble(line, " · ", (str(self._verdict), style))
        return line

    def _show_facts(self) -> None:
        self.query_one(".facts", Static).update(self._content())
