"""Stop strings: where a text ends depends on the text alone, not on the borders of its pieces."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from crucible.engine.stops import StopStrings

LETTERS = st.sampled_from("aab\n")
TEXTS = st.text(LETTERS, max_size=30)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=3)


def by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character; the first complete stop string ends it, the longest of several."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=400, deadline=None)
@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=6))
def test_pieces_do_not_matter(text, stops, cuts):
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    matcher, out = StopStrings(stops), ""
    for start, end in itertools.pairwise(borders):
        out += matcher.push(text[start:end])
        assert by_definition(text, stops)[0].startswith(out)  # nothing is ever taken back
    if matcher.found is None:
        out += matcher.finish()
    assert (out, matcher.found) == by_definition(text, stops)


def test_text_is_held_back_only_while_a_stop_string_may_come():
    matcher = StopStrings(["###"])
    assert [matcher.push(piece) for piece in ("a#", "#", "b", "##", "#c")] == ["a", "", "##b", "", ""]
    assert matcher.found == "###" and matcher.push("more") == ""


def test_without_stop_strings_text_passes_at_once():
    assert StopStrings([]).push("abc") == "abc"
