"""The lines around a chat: who answers and how full the context is, the last message, the keys."""

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

KEYS = (
    ("Esc", "stop", "stop"),
    ("^N", "new", "new_chat"),
    ("^Q", "quit", "quit"),
    ("^R", "run again", "again"),
    ("F2", "sampling", "panel"),
    ("^S", "save", "save"),
    ("^Y", "copy", "copy"),
    ("^O", "shorten", "shorten"),
    ("^T", "theme", "theme"),
)
HELP = ("F1", "help", "help")
_CELLS = 12


class Head(Horizontal):
    """Model and place on the left, the context on the right."""

    def __init__(self, model: str, place: str):
        super().__init__(id="head")
        self._model, self._place = model, place
        self._used, self._capacity = 0, 0

    def compose(self) -> ComposeResult:
        """Two texts."""
        yield Static(id="who")
        yield Static(id="meter")

    def on_mount(self) -> None:
        """Show what is known."""
        self.tell(self._model, self._place)

    def tell(self, model: str, place: str) -> None:
        """Name what answers."""
        self._model, self._place = model, place
        who = Content.assemble(("crucible", "bold $primary"), "  ", (model, "bold"), "  ", (place, "$faint"))
        self.query_one("#who", Static).update(who)

    def fill(self, used: int, capacity: int) -> None:
        """Show how much of the context is taken, in tokens."""
        self._used, self._capacity = used, capacity
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Leave the bar out where there is no room for it."""
        self._draw()

    def _draw(self) -> None:
        if not self._capacity:
            return
        text = f"{self._used}/{self._capacity}"
        if self.size.width < 70:
            self.query_one("#meter", Static).update(text)
            return
        full = min(round(_CELLS * self._used / self._capacity), _CELLS)
        colour = "$warning" if self._used > 0.9 * self._capacity else "$primary"
        bar = Content.assemble(f"{text} tokens  ", ("━" * full, colour), ("━" * (_CELLS - full), "$line"))
        self.query_one("#meter", Static).update(bar)


class Note(Static):
    """The last thing there was to say; empty and without height most of the time."""

    def __init__(self):
        super().__init__("", id="note", markup=False)
        self.text = ""

    def say(self, text: str, error: bool = False) -> None:
        """Show a sentence, as an error or in passing."""
        self.text = text
        self.set_class(error, "-error")
        self.display = bool(text)
        self.update(("✗ " if error else "") + text)


class KeyLine(Static):
    """As many keys as fit, help always; each can be clicked."""

    def __init__(self):
        super().__init__("", id="keys")

    def on_resize(self, event: events.Resize) -> None:
        """Choose anew what fits."""
        gap, chosen = 2, []
        left = self.content_size.width - len(HELP[0]) - len(HELP[1]) - 1
        for key in KEYS:
            left -= len(key[0]) + len(key[1]) + 1 + gap
            if left < 0:
                break
            chosen.append(key)
        shown = (*chosen, HELP)
        links = [f"[b]{key}[/] [@click=app.{action}]{text}[/]" for key, text, action in shown]
        self.update(Content.from_markup((" " * gap).join(links)))
