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
from crucible.service.tui.transcript import Transcript, Turn, load
from crucible.service.tui.verdict import Difference, first_token


@pytest.fixture(scope="module")
def transcript(tiny_server) -> Transcript:
    """Three answers: two sampled ones, then a greedy one with a system message."""

    async def talk() -> Transcript:
        source = LocalSource("tiny", backend=LocalBackend(tiny_server.engine))
        chat = Conversation.new(source, await source.open(lambda done, total: None))
        for user, system, temperature in (("One", None, 1.0), ("Two", None, 1.0), ("Three", "Brief.", 0.0)):
            sampling = Sampling(temperature=temperature, seed=len(user), max_tokens=12)
            turn = await chat.begin(user, system, sampling)
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


def lines_of(source, path) -> tuple[bool, list[str]]:
    """What a replay returns, and its lines."""
    lines = []
    return asyncio.run(replayed(source, load(path), lines.append)), lines


FORGED = {
    "text": (lambda turn: turn.update(text=turn["text"] + "!"), "differs in text at character"),
    "finish_reason": (lambda turn: turn.update(finish_reason="stop"), "in finish reason: length, was stop"),
    "prompt_tokens": (lambda turn: turn.update(prompt_tokens=2), ", was 2"),
    "seed": (lambda turn: turn["random_state"].update(seed=7), ", was seed 7 and next draw 12"),
    "next_draw": (lambda turn: turn["random_state"].update(next_draw=7), "and next draw 7"),
    "a token less": (lambda turn: turn["tokens"].pop(), "differs at token 11: "),
    "the question": (lambda turn: turn.update(user="Once"), "differs in prompt tokens: "),
}


@pytest.mark.parametrize("field", FORGED)
def test_a_replay_compares_everything_that_a_file_says_of_an_answer(engine_source, saved, field):
    change, told = FORGED[field]
    equal, lines = lines_of(engine_source, altered(saved, lambda data: change(data["turns"][0])))
    assert not equal and "✗ differs" in lines[0] and told in lines[0]


def test_another_model_or_fingerprint_is_told_and_the_answers_are_compared(engine_source, saved):
    def rename(data):
        data["model"] = "big\x1b[2J"
        data["turns"][0]["fingerprint"] = "fp_other"

    equal, lines = lines_of(engine_source, altered(saved, rename))
    model = r"model: 'tiny', was 'big\x1b[2J'"
    assert equal and lines[1].endswith(f"✓ equal ({model})")
    assert f"✓ equal ({model}; fingerprint: 'fp_" in lines[0] and lines[0].endswith("was 'fp_other')")


def cut(index: int, kept: int, **forged):
    """A change: turn `index` was stopped after `kept` tokens, and is the last one."""

    def change(data):
        del data["turns"][index + 1 :]
        turn = data["turns"][index]
        turn |= {"tokens": turn["tokens"][:kept], "text": turn["text"][: kept // 4]}
        turn["finish_reason"] = "cancelled"
        turn["random_state"]["next_draw"] = kept if index == 0 else 0
        turn |= forged

    return change


@pytest.mark.parametrize(("index", "kept"), [(0, 0), (0, 5), (2, 5)], ids=["nothing", "sampled", "greedy"])
def test_a_stopped_answer_is_compared_as_a_beginning(engine_source, saved, index, kept):
    equal, lines = lines_of(engine_source, altered(saved, cut(index, kept)))
    assert equal and lines[-1].endswith("✓ equal as a beginning (the answer was stopped)")


def test_a_beginning_that_was_altered_differs(engine_source, saved):
    equal, lines = lines_of(engine_source, altered(saved, cut(0, 5, text="never said")))
    assert not equal and "differs in text at character 0: " in lines[0] and "was 'never said'" in lines[0]


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
    "a sampled turn without a seed": lambda data: data["turns"][1]["sampling"].update(seed=None),
    "a greedy turn with a seed": lambda data: data["turns"][1]["sampling"].update(temperature=0.0),
    "a token below 0": lambda data: data["turns"][0].update(tokens=[-1]),
    "more tokens than the limit": lambda data: data["turns"][0].update(tokens=[1] * 257),
    "no prompt": lambda data: data["turns"][0].update(prompt_tokens=0),
    "a draw below 0": lambda data: data["turns"][0].update(random_state={"seed": 1, "next_draw": -1}),
    "a state's wrong seed": lambda data: data["turns"][0].update(random_state={"seed": -1, "next_draw": 1}),
    "no number of seconds": lambda data: data["turns"][0].update(seconds=float("nan")),
    "seconds below 0": lambda data: data["turns"][0].update(first_token_seconds=-1.0),
    "half a character": lambda data: data["turns"][0].update(text="\ud800"),
    "a forgotten turn that comes back": lambda data: data["turns"][1].update(since=1),
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
    ("expected", "got", "found"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], (1, "2", "9")),
        ([1, 2], [1, 2, 3], (2, "the end", "3")),
        ([1, 2, 3], [1, 2], (2, "3", "the end")),
        ([], [7], (0, "the end", "7")),
    ],
)
def test_a_comparison_finds_the_first_token_that_differs(expected, got, found):
    assert first_token(expected, got) == (found and Difference(f"at token {found[0]}", *found[1:]))
