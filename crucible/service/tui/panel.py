"""The panel of sampling settings: every field is judged where it stands, as it is typed."""

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Label, Select, Static, TextArea

from crucible.errors import InputError
from crucible.sampling.params import SAMPLERS
from crucible.service.tui.source import Sampling, changed

FIELDS = {
    "temperature": ("Temperature", "0 is greedy"),
    "top_k": ("Top-k", "0 keeps all"),
    "top_p": ("Top-p", "1 keeps all"),
    "seed": ("Seed", "drawn each time"),
    "max_tokens": ("Max tokens", "of one answer"),
}


class Field(Vertical):
    """A name, an input and, only while the value breaks a rule, the rule."""

    def __init__(self, name: str, value: str):
        super().__init__(id=f"field-{name}")
        self.key, self.rule, self._value = name, "", value

    def compose(self) -> ComposeResult:
        """Name, input, rule."""
        title, hint = FIELDS[self.key]
        with Horizontal(classes="row"):
            yield Label(title)
            yield Input(self._value, placeholder=hint, id=self.key, compact=True)
        yield Static("", classes="rule", markup=False)

    def judge(self, rule: str) -> None:
        """Show the rule that is broken, or none."""
        self.rule = rule
        self.set_class(bool(rule), "-wrong")
        self.query_one(".rule", Static).update(rule)


class SamplingPanel(VerticalScroll, can_focus=False):
    """Holds a Sampling and the system message; `problem` is the first sentence that stands in the way."""

    def __init__(self, sampling: Sampling, system: str | None):
        super().__init__(id="panel")
        self.sampling = sampling
        self._system = system or ""
        self._problems: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """All fields, the sampler, the system message."""
        for name in FIELDS:
            value = getattr(self.sampling, name)
            yield Field(name, "" if value is None else str(value))
        with Horizontal(classes="row"):
            yield Label("Sampler")
            chosen, names = self.sampling.sampler, [(s, s) for s in SAMPLERS]
            yield Select(names, value=chosen, allow_blank=False, compact=True)
        yield Static("", id="hint")
        yield Label("System message")
        yield TextArea(self._system, id="system", compact=True, placeholder="none")

    def on_mount(self) -> None:
        """Say what greedy makes idle."""
        self._hint()

    @property
    def problem(self) -> str | None:
        """The rule that is broken, of the uppermost field that breaks one."""
        return next((self._problems[name] for name in FIELDS if name in self._problems), None)

    @property
    def wrong(self) -> Input | None:
        """The uppermost input whose value breaks a rule."""
        return next((self.query_one(f"#{name}", Input) for name in FIELDS if name in self._problems), None)

    @property
    def system(self) -> str | None:
        """The system message, None for an empty one."""
        return self.query_one("#system", TextArea).text.strip() or None

    @on(Input.Changed)
    def read(self, event: Input.Changed) -> None:
        """Take over a value that keeps its rule; show the rule beside one that does not."""
        event.stop()
        name = event.input.id
        try:
            self.sampling = changed(self.sampling, name, event.value)
            self._problems.pop(name, None)
        except InputError as error:
            self._problems[name] = str(error)
        self.query_one(f"#field-{name}", Field).judge(self._problems.get(name, ""))
        self._hint()

    @on(Select.Changed)
    def choose(self, event: Select.Changed) -> None:
        """Take over the sampler."""
        event.stop()
        self.sampling = changed(self.sampling, "sampler", str(event.value))

    def _hint(self) -> None:
        idle = "greedy: top-k, top-p, seed and sampler change nothing" if self.sampling.greedy else ""
        hint = self.query_one("#hint", Static)
        hint.update(idle)
        hint.display = bool(idle)
