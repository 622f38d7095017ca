"""The box that a message is written in: Enter sends, Ctrl-J begins a line."""

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.widgets import TextArea


class MessageBox(TextArea):
    """A text area that grows with its text."""

    BINDINGS = [Binding("ctrl+j,shift+enter", "line", "New line", show=False)]  # noqa: RUF012

    class Sent(Message):
        """The person pressed Enter."""

        def __init__(self, text: str):
            super().__init__()
            self.text = text

    def __init__(self):
        super().__init__(id="message", compact=True, highlight_cursor_line=False, placeholder="Message")

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.prevent_default()
            event.stop()
            self.post_message(self.Sent(self.text))
            return
        await super()._on_key(event)

    def action_line(self) -> None:
        """Begin a new line."""
        self.insert("\n")

    def fill(self, text: str) -> None:
        """Put a text into the empty box, the cursor behind it."""
        if not self.text:
            self.insert(text)
