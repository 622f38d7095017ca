"""All keys on one page."""

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = (
    ("Enter", "send the message"),
    ("Ctrl-J", "begin a new line"),
    ("Esc", "stop the running answer; go back to the message"),
    ("Ctrl-R", "run an answer again with its seed and compare"),
    ("Ctrl-Y", "copy an answer"),
    ("Ctrl-↑ ↓", "choose an answer; without a choice it is the last one"),
    ("F2", "sampling and system message"),
    ("Ctrl-O", "shorten: leave the oldest turn out of the context"),
    ("Ctrl-N", "new chat"),
    ("Ctrl-S", "save the chat as JSON"),
    ("Ctrl-T", "light or dark"),
    ("Ctrl-Q", "quit"),
)


class HelpScreen(ModalScreen[None]):
    """Any of Esc, Enter, F1 closes it."""

    BINDINGS = [("escape,enter,f1", "dismiss", "Close")]  # noqa: RUF012

    def compose(self) -> ComposeResult:
        """A table of two columns."""
        with VerticalScroll(id="help"):
            for key, text in KEYS:
                with Horizontal():
                    yield Static(key, classes="key")
                    yield Static(text, classes="what")
