"""README.md shows the figures of the committed evidence, and no table of figures that was typed in."""

import re

import pytest

from crucible.errors import InputError
from crucible.report import readme
from crucible.report.notebooks import root

try:
    README = (root() / "README.md").read_text(encoding="utf-8")
except InputError as error:  # the package and its tests alone, as on a machine that only measures
    pytest.skip(str(error), allow_module_level=True)


def test_the_tables_of_the_readme_are_those_of_the_evidence():
    assert readme.rewritten(README) == README
    assert {"attention", "models", "linear"} <= set(re.findall("<!-- figures: (.*) -->", README))


def test_a_table_of_figures_outside_the_marks_is_seen():
    def typed(text):
        outside = readme._BLOCK.sub("", text)
        return [line for line in outside.splitlines() if re.match(r"\|.*\|\s*-*:?$", line) and "---:" in line]

    assert not typed(README), "figures of README.md belong between marks"
    assert typed("| a | b |\n| --- | ---: |\n| x | 1 |\n")


def test_a_figure_that_was_changed_by_hand_is_set_right():
    changed = README.replace("| 4x256 | 22", "| 4x256 | 21").replace("4x256 | ", "4x256 | 9", 1)
    assert changed != README and readme.rewritten(changed) == README


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- figures: atention -->\n<!-- /figures -->", "no table 'atention' .*did you mean attention"),
        ("<!-- figures: attention -->\n", "1 marks .* and 0"),
        ("<!-- /figures -->\n<!-- figures: attention -->\n", "each needs the other"),
    ],
)
def test_wrong_marks_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        readme.rewritten(text)


def test_a_table_of_gates_can_stand_in_the_readme():
    made = readme.rewritten("a\n<!-- figures: gates -->\nstale words\n<!-- /figures -->\nb\n")
    assert made.startswith("a\n") and made.endswith("b\n") and "stale words" not in made
    assert "| tensor " in made and "cuda, h200" in made
