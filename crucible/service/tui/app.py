"""`crucible chat` on the screen."""

import datetime
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input

from crucible.errors import CrucibleError
from crucible.service.tui.bars import Head, KeyLine, Note
from crucible.service.tui.exchange import Exchange
from crucible.service.tui.help import HelpScreen
from crucible.service.tui.message import MessageBox
from crucible.service.tui.panel import SamplingPanel
from crucible.service.tui.source import Sampling, Source
from crucible.service.tui.talk import Talk
from crucible.service.tui.themes import THEMES
from crucible.service.tui.transcript import Transcript

WIDE = 100  # columns from which the panel is open at the start
_BUSY = "an answer is running; Esc stops it"


class ChatApp(App[CrucibleError]):
    """A chat with a Source; returns the error that made a chat impossible, or None.

    `replay` runs every answer of `transcript` again at the start; `save` is where Ctrl-S writes.
    """

    CSS_PATH = "chat.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS: ClassVar = [(0, "-narrow"), (70, "-wide")]
    VERTICAL_BREAKPOINTS: ClassVar = [(0, "-short"), (18, "-tall")]
    BINDINGS: ClassVar = [
        Binding("escape", "stop"),
        Binding("ctrl+n", "new_chat", priority=True),
        Binding("ctrl+r", "again", priority=True),
        Binding("ctrl+s", "save", priority=True),
        Binding("ctrl+y", "copy", priority=True),
        Binding("ctrl+o", "shorten", priority=True),
        Binding("ctrl+t", "theme", priority=True),
        Binding("ctrl+up", "choose(-1)", priority=True),
        Binding("ctrl+down", "choose(1)", priority=True),
        Binding("f1", "help", priority=True),
        Binding("f2", "panel", priority=True),
    ]

    def __init__(
        self,
        source: Source,
        sampling: Sampling | None = None,
        system: str | None = None,
        transcript: Transcript | None = None,
        replay: bool = False,
        theme: str = "dark",
        save: Path | None = None,
    ):
        super().__init__()
        for made in THEMES.values():
            self.register_theme(made)
        self.theme = THEMES[theme].name
        self.talk = Talk(source)
        self.panel = SamplingPanel(sampling or Sampling(), system)
        self.box, self.note = MessageBox(), Note()
        self._head = Head(source.name, source.place)
        self._opened_with = (transcript, replay)
        self.save_to = save
        self._wide: bool | None = None

    def compose(self) -> ComposeResult:
        """Head; turns and panel; note, message, keys."""
        yield self._head
        with Horizontal(id="body"):
            yield self.talk
            yield self.panel
        yield self.note
        yield self.box
        yield KeyLine()

    def on_mount(self) -> None:
        """Open the source."""
        self.note.say("")
        self.box.focus()
        self.talk.open(*self._opened_with)

    def on_resize(self, event: events.Resize) -> None:
        """Open the panel where it leaves room for the chat, close it where it does not."""
        wide = event.size.width >= WIDE
        if wide != self._wide:
            self._wide = wide
            self.panel.display = wide or self.panel.has_focus_within

    @on(MessageBox.Sent)
    def send(self, event: MessageBox.Sent) -> None:
        """Ask, unless something stands in the way: then say what."""
        if not event.text.strip():
            return
        if self.talk.busy:
            self.note.say(_BUSY)
            return
        if self.panel.problem is not None:
            self.note.say(self.panel.problem, error=True)
            self.panel.display = True
            self.panel.wrong.focus()
            return
        self.note.say("")
        self.box.clear()
        self.talk.ask(event.text, self.panel.system, self.panel.sampling)

    @on(Input.Submitted)
    def back(self) -> None:
        """Enter in the panel goes to the message."""
        self.box.focus()

    @on(Talk.Said)
    def tell(self, event: Talk.Said) -> None:
        """Show what the work has to say."""
        self.note.say(event.text, event.error)
        self.box.fill(event.unsent)

    @on(Talk.Impossible)
    def give_up(self, event: Talk.Impossible) -> None:
        """Leave the screen with the reason."""
        self.exit(event.error, return_code=2)

    @on(Talk.Changed)
    def measure(self) -> None:
        """Show who answers, how full the context is, and which turns are no longer in it."""
        conversation = self.talk.conversation
        if conversation is None:
            return
        self._head.tell(conversation.about.model, conversation.about.where)
        self._head.fill(conversation.used, conversation.about.capacity)
        for index, exchange in enumerate(self.talk.exchanges):
            exchange.set_class(index < conversation.since, "-forgotten")

    def action_stop(self) -> None:
        """Stop what runs and go back to the message."""
        self.talk.stop()
        if self.panel.has_focus_within and not self._wide:
            self.panel.display = False
        self.box.focus()

    async def action_new_chat(self) -> None:
        """Forget everything that was said."""
        await self.talk.clear()
        self.save_to = None
        self.note.say("new chat")
        self.box.focus()

    def action_again(self) -> None:
        """Run the chosen answer again with its seed."""
        exchange = self._chosen()
        if exchange is not None and self._free():
            self.note.say("")
            self.talk.again([exchange])

    def action_copy(self) -> None:
        """Put the chosen answer on the clipboard."""
        exchange = self._chosen()
        if exchange is not None:
            self.copy_to_clipboard(exchange.turn.text)
            self.note.say(f"copied, {len(exchange.turn.text)} characters")

    def action_shorten(self) -> None:
        """Leave the oldest turn out of the prompts to come."""
        if self._chosen() is None or not self._free():
            return
        conversation = self.talk.conversation
        left = conversation.forget()
        self.note.say(f"{left} of {len(conversation.turns)} turns stay in the context")
        self.measure()

    def action_save(self) -> None:
        """Write the chat as JSON."""
        if self._chosen() is None or not self._free():
            return
        if self.save_to is None:
            self.save_to = Path(f"chat-{datetime.datetime.now():%Y%m%d-%H%M%S}.json")
        try:
            self.talk.conversation.transcript.save(self.save_to)
        except CrucibleError as error:
            self.note.say(str(error), error=True)
            return
        self.note.say(f"saved to {self.save_to}")

    def action_choose(self, step: int) -> None:
        """Focus the next or the previous answer; below the last one comes the message."""
        found: list = [*self.talk.exchanges, self.box]
        at = found.index(self.focused) if self.focused in found else len(found) - 1
        found[min(max(at + step, 0), len(found) - 1)].focus()

    def action_panel(self) -> None:
        """Show or hide the panel."""
        self.panel.display = not self.panel.display
        if self.panel.display:
            self.panel.query_one("#temperature").focus()
        else:
            self.box.focus()

    def action_theme(self) -> None:
        """Light or dark."""
        names = [made.name for made in THEMES.values()]
        self.theme = names[1 - names.index(self.theme)]

    def action_help(self) -> None:
        """All keys."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def action_help_quit(self) -> None:
        """What Ctrl-C does where nothing is marked."""
        self.note.say("Ctrl-Q quits, Esc stops an answer")

    def _chosen(self) -> Exchange | None:
        """The focused answer, else the last one; says so where there is none."""
        if isinstance(self.focused, Exchange):
            return self.focused
        if not self.talk.exchanges:
            self.note.say("there is no answer yet")
            return None
        return self.talk.exchanges[-1]

    def _free(self) -> bool:
        if self.talk.busy:
            self.note.say(_BUSY)
        return not self.talk.busy
