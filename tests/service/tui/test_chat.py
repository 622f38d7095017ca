"""A chat gives the engine's own answers, again whenever it is asked to, and lets go when it is told to."""

from crucible.engine.request import Request
from crucible.service.tui.exchange import visible
from crucible.service.tui.source import Sampling

SEEDED = Sampling(temperature=1.0, seed=3, max_tokens=24)


def asked(tiny, messages, sampling=SEEDED) -> Request:
    """The engine's request for messages of the tiny model."""
    return Request(tuple(tiny.encode_chat(messages)), **vars(sampling))


def user(text):
    return {"role": "user", "content": text}


def test_an_answer_is_what_the_engine_gives_for_the_rendered_prompt(play, source, tiny, alone):
    async def scene(stage):
        exchange = await stage.say("Hello there")
        expected = alone(asked(tiny, [user("Hello there")]))
        assert exchange.turn.tokens == expected.tokens and exchange.turn.text == expected.text
        assert vars(exchange.turn.random_state) == vars(expected.random_state)
        assert exchange.turn.prompt_tokens == len(expected.prompt_tokens)
        assert exchange.turn.fingerprint == tiny.fingerprint()

    play(source, scene, sampling=SEEDED)


def test_text_appears_while_the_answer_runs(play, held_engine):
    source, gate, _ = held_engine

    async def scene(stage):
        await stage.send("Hello there")
        gate.let(6)
        await stage.until(lambda: stage.last and len(stage.last.turn.tokens) == 6)
        part = stage.last.turn.text
        stage.last.refresh_turn()
        assert stage.app.talk.busy and part and stage.last.answer == visible(part)
        gate.open()
        await stage.settle()
        assert stage.last.turn.text.startswith(part) and len(stage.last.turn.tokens) == 24

    play(source, scene, sampling=SEEDED)


def test_esc_stops_the_answer_and_gives_its_pages_back(play, held, tiny, alone):
    source, gate, server = held

    async def scene(stage):
        await stage.send("Hello there")
        gate.let(6)
        await stage.until(lambda: stage.last and len(stage.last.turn.tokens) == 6)
        assert server.engine.stats().pages_used > 0
        await stage.press("escape")
        gate.open()
        await stage.settle()
        turn = stage.last.turn
        assert turn.finish_reason == "cancelled" and "stopped" in stage.last.facts
        assert turn.tokens == alone(asked(tiny, [user("Hello there")])).tokens[: len(turn.tokens)]
        assert stage.note == "stopped" and not stage.app.talk.busy
        server.idle()
        await stage.press("ctrl+r")
        await stage.settle()
        assert stage.last.facts.endswith("✓ equal as a beginning (the answer was stopped)")

    play(source, scene, sampling=SEEDED)


def test_esc_before_the_first_token_puts_the_message_back(play, held_engine):
    source, gate, server = held_engine

    async def scene(stage):
        await stage.send("Hello there")
        await stage.until(lambda: stage.last is not None and server.engine.stats().running == 1)
        await stage.press("escape")
        gate.open()
        await stage.settle()
        assert stage.app.box.text == "Hello there" and not stage.exchanges and not stage.turns

    play(source, scene)


def test_a_second_message_waits_in_its_box_while_an_answer_runs(play, held_engine):
    source, gate, _ = held_engine

    async def scene(stage):
        await stage.send("Hello there")
        await stage.send("And you?")
        assert "Esc stops it" in stage.note and stage.app.box.text == "And you?"
        gate.open()
        await stage.settle()
        assert len(stage.turns) == 1

    play(source, scene)


def test_the_first_token_that_differs_is_named(play, engine_source):
    async def scene(stage):
        exchange = await stage.say("Hello there")
        was = exchange.turn.tokens[5]
        exchange.turn.tokens[5] = (was + 1) % 256
        await stage.press("ctrl+r")
        await stage.settle()
        assert exchange.facts.endswith(f"✗ differs at token 5: {was}, was {(was + 1) % 256}")

    play(engine_source, scene, sampling=SEEDED)


def test_each_answer_shows_its_seed_and_the_chosen_one_runs_again(play, engine_source):
    async def scene(stage):
        first, second = await stage.say("One"), await stage.say("Two")
        assert all(f"seed {one.turn.sampling.seed}" in one.facts for one in (first, second))
        await stage.press("ctrl+up", "ctrl+up")
        assert stage.app.focused is first
        await stage.press("ctrl+r")
        await stage.settle()
        assert first.facts.endswith("✓ equal") and "equal" not in second.facts
        await stage.press("ctrl+down", "ctrl+down")
        assert stage.app.focused is stage.app.box

    play(engine_source, scene)


def test_ctrl_n_stops_the_running_answer_and_leaves_the_past_behind(play, held_engine, tiny, alone):
    source, gate, server = held_engine

    async def scene(stage):
        await stage.send("Hello there")
        gate.let(4)
        await stage.until(lambda: stage.last and len(stage.last.turn.tokens) == 4)
        await stage.press("ctrl+n")
        gate.open()
        await stage.settle()
        assert not stage.exchanges and not stage.turns
        server.idle()
        assert (await stage.say("Two")).turn.tokens == alone(asked(tiny, [user("Two")])).tokens

    play(source, scene, sampling=SEEDED)


def test_a_full_context_says_how_to_go_on_and_shortening_does(play, engine_source):
    async def scene(stage):
        await stage.say("x" * 500)
        await stage.say("y" * 600)
        assert "the context holds 1024" in stage.note and "Ctrl-O" in stage.note and "Ctrl-N" in stage.note
        assert len(stage.turns) == 1 and stage.app.box.text == "y" * 600
        await stage.press("ctrl+o")
        assert stage.exchanges[0].has_class("-forgotten")
        await stage.press("enter")
        await stage.settle()
        assert len(stage.turns) == 2 and stage.turns[1].since == 1 and stage.turns[1].tokens
        await stage.press("ctrl+n")
        await stage.say("x" * 1000)
        assert stage.note.startswith("the context is full") and "Ctrl-N" in stage.note

    play(engine_source, scene, sampling=SEEDED)


def test_leaving_in_the_middle_of_an_answer_gives_its_pages_back(play, held):
    source, gate, server = held

    async def scene(stage):
        await stage.send("Hello there")
        gate.let(4)
        await stage.until(lambda: stage.last and len(stage.last.turn.tokens) == 4)
        await stage.press("ctrl+q")

    assert play(source, scene, sampling=SEEDED).return_code == 0
    gate.open()
    server.idle()
