"""What is on the screen: at every size, in both themes, and with whatever a model writes."""

from textual.widgets import Input

from crucible.service.tui.exchange import visible
from crucible.service.tui.help import HelpScreen
from crucible.service.tui.source import Sampling

SIZES = [(40, 12), (60, 16), (80, 24), (100, 30), (200, 50)]


def test_message_keys_and_the_end_of_the_answer_are_visible_at_every_size(play, engine_source):
    async def scene(stage):
        exchange = await stage.say("Hello there")
        for size in (*SIZES, SIZES[0]):
            await stage.pilot.resize_terminal(*size)
            await stage.shown()
            screen = stage.app.screen.region
            assert (screen.width, screen.height) == size
            for widget in (stage.app.box, *stage.app.query("#keys, #head, #meter")):
                assert widget.region.height and widget.region in screen, (size, widget)
            assert exchange.query_one(".facts").region.overlaps(stage.app.talk.region), size
            keys = stage.app.query_one("#keys")
            assert str(keys.content).endswith("F1 help"), size
            assert len(str(keys.content)) <= keys.content_size.width, size

    play(engine_source, scene)


def test_the_panel_opens_over_the_chat_on_a_small_screen_and_esc_closes_it(play, engine_source):
    async def scene(stage):
        panel = stage.app.panel
        assert not panel.display
        await stage.press("f2")
        assert panel.display and isinstance(stage.app.focused, Input)
        assert stage.app.focused.region in stage.app.screen.region
        await stage.press("escape")
        assert not panel.display and stage.app.focused is stage.app.box

    play(engine_source, scene, size=(40, 12))


def test_a_resize_while_an_answer_runs_loses_nothing(play, held_engine):
    source, gate, _ = held_engine

    async def scene(stage):
        await stage.send("Hello there")
        gate.let(4)
        await stage.until(lambda: stage.last and len(stage.last.turn.tokens) == 4)
        for size in SIZES:
            await stage.pilot.resize_terminal(*size)
        gate.open()
        await stage.settle()
        assert len(stage.last.turn.tokens) == 24 and stage.last.answer == visible(stage.last.turn.text)

    play(source, scene, sampling=Sampling(temperature=1.0, seed=3, max_tokens=24))


def test_control_characters_of_a_model_do_not_act():
    text = "a\x1b[2Jb\x07\x9b31m\u202ec\td\ne\x7f"
    assert visible(text) == "a␛[2Jb␇\ufffd31m\ufffdc   d\ne␡"


def test_ctrl_t_changes_between_dark_and_light(play, engine_source):
    async def scene(stage):
        dark = stage.app.screen.styles.background
        await stage.press("ctrl+t")
        light = stage.app.screen.styles.background
        assert dark.brightness < 0.2 < 0.8 < light.brightness
        await stage.press("ctrl+t")
        assert stage.app.screen.styles.background == dark

    play(engine_source, scene)


def test_a_copied_answer_is_the_whole_answer(play, engine_source):
    async def scene(stage):
        exchange = await stage.say("Hello there")
        await stage.press("ctrl+y")
        assert stage.app.clipboard == exchange.turn.text and stage.note.startswith("copied")

    play(engine_source, scene)


def test_a_message_of_several_lines_is_text_and_not_markup(play, engine_source):
    text = "[bold]x[/] [@click=app.quit]y[/]\n[/nope]"

    async def scene(stage):
        stage.app.box.insert("[bold]x[/] [@click=app.quit]y[/]")
        await stage.press("ctrl+j")
        assert stage.app.box.region.height == 2
        exchange = await stage.say("[/nope]")
        assert exchange.turn.user == text == str(exchange.query_one(".question").content)
        assert stage.app.box.text == ""

    play(engine_source, scene)


def test_help_lists_the_keys_and_closes(play, engine_source):
    async def scene(stage):
        await stage.press("f1")
        assert isinstance(stage.app.screen, HelpScreen)
        await stage.press("escape")
        assert not isinstance(stage.app.screen, HelpScreen)

    play(engine_source, scene)


def test_keys_that_need_an_answer_say_that_there_is_none(play, engine_source, in_folder):
    async def scene(stage):
        for key in ("ctrl+r", "ctrl+y", "ctrl+s", "ctrl+o"):
            stage.app.note.say("")
            await stage.press(key)
            assert stage.note == "there is no answer yet", key
        await stage.send("  \n ")
        assert not stage.turns

    play(engine_source, scene)
    assert not list(in_folder.iterdir())
