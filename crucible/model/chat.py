"""Chat messages to prompt text through the checkpoint's own Jinja template."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from crucible.errors import InputError, UnavailableError, UnsupportedError


def render(template: str | None, messages: Sequence[Mapping[str, str]], bos: str = "", eos: str = "") -> str:
    """The prompt that asks for the assistant's next message after `messages` (role, content each).

    The template runs in a sandbox, as it comes from a file. Raises UnsupportedError without a
    template and InputError when the template refuses the messages.
    """
    if not template:
        raise UnsupportedError("this checkpoint has no chat template; use a plain prompt")
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise UnavailableError("chat templates need jinja2; run: pip install jinja2") from None

    def refuse(message: str) -> None:
        raise InputError(f"the chat template refuses the messages: {message}")

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=True,
            bos_token=bos,
            eos_token=eos,
        )
    except TemplateError as error:
        raise InputError(f"the chat template cannot be rendered: {error}") from None
