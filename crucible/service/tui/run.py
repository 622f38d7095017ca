"""From start to end: the chat on the screen, and a replay that needs none."""

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from crucible.errors import InputError
from crucible.service.tui.conversation import Conversation
from crucible.service.tui.source import Sampling, Source
from crucible.service.tui.transcript import Transcript
from crucible.service.tui.verdict import Verdict


async def on_screen(
    source: Source,
    sampling: Sampling,
    system: str | None,
    transcript: Transcript | None,
    replay: bool,
    theme: str,
    save: Path | None,
) -> bool:
    """Run the chat until it is left; False if a second run differed. Raises what made a chat impossible."""
    from crucible.service.tui.app import ChatApp

    app = ChatApp(source, sampling, system, transcript, replay, theme, save)
    try:
        error = await app.run_async()
    finally:
        await source.close()
    if error is not None:
        raise error
    return all(verdict.equal for verdict in app.talk.verdicts)


async def replayed(source: Source, transcript: Transcript, show: Callable[[str], None]) -> bool:
    """Run every answer of a transcript again, a line each; whether all are equal."""
    if not transcript.turns:
        raise InputError("the saved chat has no answer; there is nothing to run again")
    try:
        about = await source.open(lambda done, total: None)
        chat, verdicts = Conversation.going_on(source, about, transcript), []
        for index, turn in enumerate(chat.turns):
            async with aclosing(chat.again(index)) as events:
                async for event in events:
                    if isinstance(event, Verdict):
                        verdicts.append(event)
            seed = "greedy" if turn.sampling.greedy else f"seed {turn.sampling.seed}"
            show(f"answer {index}: {len(turn.tokens)} tokens, {seed}: {verdicts[-1]}")
    finally:
        await source.close()
    return all(verdict.equal for verdict in verdicts)
