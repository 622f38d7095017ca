"""Chat messages to a prompt through the checkpoint's own Jinja template; what they say stays text."""

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from crucible.errors import InputError, UnavailableError, UnsupportedError
from crucible.files import brief
from crucible.model.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, str]]

# A rendering may make or walk over this many characters, and so many for each of its input.
_CHARACTERS, _PER_CHARACTER = 1 << 23, 64
_MARKS = range(0xF0000, 0xFFFFE)  # private use: no tokenizer and no template gives them a meaning


def render(
    template: str | None, messages: Messages, bos: str = "", eos: str = "", continued: bool = False
) -> str:
    """The prompt that asks for the assistant's next message after `messages` (role, content, all texts).

    With `continued` the last message is the assistant's and the prompt ends where it ends, so that the
    model goes on with it. The template runs in a sandbox, as it comes from a file. Raises UnsupportedError
    without a template, or with one that gives no place to go on at, and InputError when the template
    refuses the messages or does not end.
    """
    if not template:
        raise UnsupportedError("this checkpoint has no chat template; use a plain prompt")
    if not continued:
        return _run(template, messages, bos, eos, True)
    # Exact where the template writes the assistant's message as it asks for one, and then its very text.
    prompt = _run(template, messages[:-1], bos, eos, True) + messages[-1]["content"]
    if not _run(template, messages, bos, eos, False).startswith(prompt):
        raise UnsupportedError(
            "the chat template changes an assistant message that is to be continued; end with a user message"
        )
    return prompt


def encode(
    tokenizer: Tokenizer,
    template: str | None,
    messages: Messages,
    bos: str = "",
    eos: str = "",
    continued: bool = False,
    look: Callable[[str], None] | None = None,
) -> list[int]:
    """Token ids of the prompt that `render` gives, where no message can write a control token.

    A message that spells one (`<|im_end|>`) is about it and must not end its own turn or open another: only
    the template's own become control tokens, those of a message (all but its role) are encoded as the
    letters they are.
    A plain prompt (`Card.encode`) keeps them: whoever writes it writes the whole prompt. Tokens that a
    vocabulary adds without marking them as control are text on both ways.
    `look` is shown the rendered text before it is encoded, and may raise.
    Errors as `render`; InputError also where the template looks inside such a message, and
    UnsupportedError where the tokenizer cannot encode the letters.
    """
    text = render(template, messages, bos, eos, continued)
    if look is not None:
        look(text)
    controls = tokenizer.controls
    cuts = {
        (at, key): places
        for at, message in enumerate(messages)
        for key, said in message.items()
        if key != "role" and (places := _cuts(said, tuple(controls)))
    }
    if not cuts:
        return tokenizer.encode(text)
    known = text + "".join(said for message in messages for said in message.values())
    mark = next((chr(point) for point in _MARKS if chr(point) not in known), None)
    if mark is None:
        raise InputError("the messages hold every private-use character; leave one out")
    marked = [
        {key: _marked(said, cuts.get((at, key), set()), mark) for key, said in message.items()}
        for at, message in enumerate(messages)
    ]
    split = render(template, marked, bos, eos, continued)
    if split.replace(mark, "") != text:
        raise InputError(
            "a message spells a control token and the chat template looks inside it; leave the token out"
        )
    ids, end = tokenizer.encode(""), 0
    for found in _spellings(tuple(controls))[0].finditer(split):
        ids += tokenizer.encode_letters(split[end : found.start()].replace(mark, ""))
        token, end = controls[found[0]], found.end()
        # The begin-of-text token stands in front once, whether the tokenizer or the template puts it there.
        ids += [token] if found.start() or ids != [token] else []
    return ids + tokenizer.encode_letters(split[end:].replace(mark, ""))


@functools.lru_cache(maxsize=8)
def _spellings(controls: tuple[str, ...]) -> tuple[re.Pattern, frozenset[str], frozenset[str]]:
    """Pattern of all control tokens (of those that begin at one place the longest), their heads and tails."""
    pattern = "|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)"
    heads = (name[:n] for name in controls for n in range(1, len(name)))
    tails = (name[n:] for name in controls for n in range(1, len(name)))
    return re.compile(pattern), frozenset(heads), frozenset(tails)


def _cuts(text: str, controls: tuple[str, ...]) -> set[int]:
    """Places in `text` at which a mark breaks every control token that it spells, or that it might spell
    together with what comes before and after it."""
    pattern, heads, tails = _spellings(controls)
    cuts = set()
    if pattern.search(text):
        for name in controls:
            at = text.find(name)
            while at >= 0:
                cuts.add(at + 1)
                at = text.find(name, at + 1)
    for n in range(1, min(len(text), max(map(len, controls), default=0)) + 1):
        if text[-n:] in heads:
            cuts.add(len(text) - n + 1)
        if text[:n] in tails:
            cuts.add(n - 1)
    if text and any(text in name[1:-1] for name in controls):
        cuts.add(0)
    return cuts


def _marked(text: str, cuts: set[int], mark: str) -> str:
    places = [0, *sorted(cuts), len(text)]
    return mark.join(text[a:b] for a, b in itertools.pairwise(places))


def _run(template: str, messages: Messages, bos: str, eos: str, ask: bool) -> str:
    try:
        from jinja2 import TemplateError

        from crucible.model import sandbox
    except ImportError:
        raise UnavailableError("chat templates need jinja2; run: pip install jinja2") from None

    def refuse(message: str) -> None:
        raise InputError(f"the chat template refuses the messages: {brief(str(message), 200)}")

    values = {
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": ask,
        "bos_token": bos,
        "eos_token": eos,
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    size = len(template) + sum(sum(map(len, m.values())) + 1 for m in messages)
    try:
        return sandbox.render(template, values, _CHARACTERS + _PER_CHARACTER * size)
    except TemplateError as error:
        reason = brief(str(error), 200)
        raise InputError(f"the chat template cannot be rendered: {reason}; use a plain prompt") from None
