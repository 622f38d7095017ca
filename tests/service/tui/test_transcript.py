"""A chat that was saved can be read, gone on with, and run again to the same tokens on whatever answers."""

import asyncio
import json
from dataclasses import asdict

import pytest

from crucible.engine.request import Request
from crucible.errors import InputError
from crucible.service.backend import LocalBackend
from crucible.service.tui.conversation import Conversation
from crucible.service.tui.local import LocalSource
from crucible.service.tui.run import replayed
from crucible.service.tui.source import Sampling
from crucible.service.tui.transcript import Transcript, Turn, Verdict, compare, load


@pytest.fixture(scope="module")
def transcript(tiny_server) -> Transcript:
    """Three answers: two with drawn seeds, then a greedy one with a system message."""

    async def talk() -> Transcript:
        source = LocalSource("tiny", backend=LocalBackend(tiny_server.engine))
        chat = Conversation.new(source, await source.open(lambda done, total: None))
        for user, system, temperature in (("One", None, 1.0), ("Two", None, 1.0), ("Three", "Brief.", 0.0)):
            turn = await chat.begin(user, system, Sampling(temperature=temperature, max_tokens=12))
            async for _ in chat.answer(turn):
                pass
        return chat.transcript

    return asyncio.run(talk())


@pytest.fixture
def saved(transcript, tmp_path):
    """The file of that chat."""
    transcript.save(tmp_path / "chat.json")
    return tmp_path / "chat.json"


def altered(path, change):
    """The file with `change` made to its data."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def test_a_chat_is_saved_and_read_with_all_that_decides_its_tokens(play, engine_source, transcript, saved):
    async def scene(stage):
        assert [exchange.turn.text for exchange in stage.exchanges] == [t.text for t in transcript.turns]
        await stage.press("ctrl+s")
        assert stage.note == f"saved to {saved}"

    before = saved.read_bytes()
    read = load(saved)
    assert asdict(read) == asdict(transcript)
    saved.unlink()
    play(engine_source, scene, transcript=read, save=saved)
    assert saved.read_bytes() == before
    first = read.turns[0]
    assert first.sampling.seed == first.random_state.seed and first.fingerprint.startswith("fp_")
    assert first.random_state.next_draw == len(first.tokens)
    assert transcript.turns[2].sampling.seed is None and transcript.turns[2].system == "Brief."


def test_a_loaded_chat_goes_on_as_if_it_had_never_stopped(source, tiny, alone, saved):
    sampling = Sampling(temperature=1.0, seed=9, max_tokens=12)

    async def scene():
        about = await source.open(lambda done, total: None)
        chat = Conversation.going_on(source, about, load(saved))
        said = [
            {"role": role, "content": text}
            for turn in chat.turns
            for role, text in (("user", turn.user), ("assistant", turn.text))
        ]
        said.append({"role": "user", "content": "Four"})
        turn = await chat.begin("Four", None, sampling)
        assert [piece async for piece in chat.answer(turn)]
        assert turn.tokens == alone(Request(tuple(tiny.encode_chat(said)), **vars(sampling))).tokens
        await source.close()

    asyncio.run(scene())


def test_a_replay_marks_every_answer(play, engine_source, saved):
    async def scene(stage):
        assert all(exchange.facts.endswith("✓ equal") for exchange in stage.exchanges)
        assert stage.note == "✓ all 3 equal"

    app = play(engine_source, scene, transcript=load(saved), replay=True)
    assert len(app.talk.verdicts) == 3


def test_a_replay_needs_no_screen_and_tells_the_first_token_that_differs(source, saved):
    def change(data):
        data["turns"][1]["tokens"][2] += 1

    lines = []
    assert not asyncio.run(replayed(source, load(altered(saved, change)), lines.append))
    assert len(lines) == 3 and lines[0].endswith("✓ equal") and lines[2].endswith("greedy: ✓ equal")
    assert "✗ differs at token 2" in lines[1]


def test_another_fingerprint_is_told_beside_the_verdict(engine_source, saved):
    def change(data):
        data["turns"][0]["fingerprint"] = "fp_other"

    lines = []
    assert asyncio.run(replayed(engine_source, load(altered(saved, change)), lines.append))
    assert lines[0].endswith("✓ equal (another fingerprint)") and lines[1].endswith("✓ equal")


def test_a_chat_gets_a_file_of_its_own_and_a_wrong_place_is_one_line(play, engine_source, in_folder):
    async def scene(stage):
        for text in ("One", "Two"):
            await stage.say(text)
            await stage.press("ctrl+s")
        (path,) = in_folder.iterdir()
        assert path.name.startswith("chat-") and len(load(path).turns) == 2
        await stage.press("ctrl+n")
        (in_folder / "file").write_text("")
        stage.app.save_to = in_folder / "file" / "chat.json"
        await stage.say("Three")
        await stage.press("ctrl+s")
        assert stage.note.startswith("cannot write") and "is not a folder" in stage.note

    play(engine_source, scene)


WRONG = {
    "no JSON": lambda data: None,
    "another format": lambda data: data.update(format="crucible chat 2"),
    "an unknown field": lambda data: data["turns"][0].update(penalty=1.0),
    "no tokens": lambda data: data["turns"][0].pop("tokens") and data["turns"][0].update(tokens="ab"),
    "a wrong temperature": lambda data: data["turns"][0]["sampling"].update(temperature=-1.0),
    "a wrong seed": lambda data: data["turns"][0]["sampling"].update(seed=1 << 64),
    "a turn from the future": lambda data: data["turns"][1].update(since=2),
    "a turn without an end": lambda data: data["turns"][2].update(finish_reason=""),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_no_transcript_is_refused_in_one_sentence(tmp_path, case):
    turn = Turn("q", None, 0, Sampling(seed=1), "a", [1], 1, "stop")
    data = {"model": "m", "format": "crucible chat 1", "turns": [asdict(turn) for _ in range(3)]}
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(data))
    assert len(load(path).turns) == 3
    WRONG[case](data)
    path.write_text("{" if case == "no JSON" else json.dumps(data))
    with pytest.raises(InputError) as caught:
        load(path)
    assert "is no transcript of a chat" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expected", "got", "verdict"),
    [
        ([1, 2, 3], [1, 2, 3], Verdict()),
        ([1, 2, 3], [1, 9, 3], Verdict(1, 2, 9)),
        ([1, 2], [1, 2, 3], Verdict(2, None, 3)),
        ([1, 2, 3], [1, 2], Verdict(2, 3, None)),
        ([], [7], Verdict(0, None, 7)),
    ],
)
def test_a_comparison_finds_the_first_difference(expected, got, verdict):
    assert compare(expected, got) == verdict and compare(expected, got).equal == (expected == got)
