"""The sampling panel takes what keeps its rule, and names the rule where a value breaks it."""

import pytest
from textual.widgets import Select

from crucible.service.tui.source import Sampling

WRONG = [
    ("temperature", "-1", "at least 0"),
    ("temperature", "nan", "finite"),
    ("temperature", "1e39", "float32"),
    ("temperature", "warm", "not a number"),
    ("temperature", "", "give a number"),
    ("top_k", "-1", "0 (the whole vocabulary) or more"),
    ("top_k", "2.5", "not a whole number"),
    ("top_p", "0", "greater than 0"),
    ("top_p", "1.01", "at most 1"),
    ("seed", "-1", "64 bits"),
    ("seed", str(1 << 64), "18446744073709551615"),
    ("seed", "1_0", "not a number"),
    ("max_tokens", "0", "at least 1"),
]
RIGHT = [
    ("temperature", "0.25", 0.25),
    ("top_k", "40", 40),
    ("top_p", "0.5", 0.5),
    ("seed", str((1 << 64) - 1), (1 << 64) - 1),
    ("seed", "", None),
    ("max_tokens", "7", 7),
]


async def type_into(stage, name: str, text: str) -> None:
    field = stage.app.panel.query_one(f"#{name}")
    field.value = text[:-1]
    field.focus()
    await stage.press("end", *text[-1:])


def test_every_wrong_value_is_named_in_its_place_and_nothing_is_asked(play, engine_source):
    async def scene(stage):
        for name, text, rule in WRONG:
            stage.app.panel.query_one(f"#{name}").value = text
            await stage.shown()
            field = stage.app.panel.query_one(f"#field-{name}")
            assert field.has_class("-wrong") and rule in field.rule, (name, text, field.rule)
            assert getattr(stage.app.panel.sampling, name) == getattr(Sampling(), name), "it was taken"
            if text == "-1":
                stage.app.box.clear()
                await stage.send("Hello")
                assert stage.note == field.rule and not stage.turns, (name, text)
                assert stage.app.focused.id == name, "the wrong field has the cursor"
            before = getattr(Sampling(), name)
            stage.app.panel.query_one(f"#{name}").value = "" if before is None else str(before)
            await stage.shown()
            assert not field.has_class("-wrong")

    play(engine_source, scene, sampling=Sampling())


def test_every_right_value_is_that_of_the_next_request(play, engine_source):
    async def scene(stage):
        panel = stage.app.panel
        for name, text, value in RIGHT:
            await type_into(stage, name, text)
            assert getattr(panel.sampling, name) == value and panel.problem is None
        panel.query_one(Select).value = "gumbel-id"
        panel.query_one("#system").insert("Be brief.")
        await stage.shown()
        turn = (await stage.say("Hello")).turn
        assert turn.sampling.temperature == 0.25 and turn.sampling.top_k == 40 and turn.sampling.top_p == 0.5
        assert turn.sampling.sampler == "gumbel-id" and turn.system == "Be brief." and len(turn.tokens) <= 7
        hint = panel.query_one("#hint")
        assert not hint.display
        await type_into(stage, "temperature", "0")
        assert hint.display and "seed" in str(hint.content), "greedy says what it leaves idle"

    play(engine_source, scene)


@pytest.mark.parametrize("text", ["0x10", "1e3", "٣"])
def test_only_plain_digits_are_a_seed(text):
    from crucible.errors import InputError
    from crucible.service.tui.source import changed

    with pytest.raises(InputError, match="seed"):
        changed(Sampling(), "seed", text)
