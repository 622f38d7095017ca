"""README.md shows the figures of the committed evidence, and no table of figures that was typed in."""

import re
from statistics import median

import pytest

from crucible.bench import figures
from crucible.errors import InputError
from crucible.evidence import record
from crucible.report import readme
from crucible.report.notebooks import root

try:
    README = (root() / "README.md").read_text(encoding="utf-8")
except InputError as error:  # the package and its tests alone, as on a machine that only measures
    pytest.skip(str(error), allow_module_level=True)


def test_the_tables_of_the_readme_are_those_of_the_evidence():
    assert readme.rewritten(README) == README
    assert set(readme.BLOCKS) - {"gates"} == set(re.findall("<!-- figures: (.*) -->", README))


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


def test_a_change_of_the_service_is_the_median_of_its_pairs_and_each_mode_is_its_own():
    h200 = root() / "outputs" / "h200"
    f32, int8 = h200 / "evidence.json", h200 / "service_ab_int8.json"
    made = next(r for r in record.load(int8) if r.kind == "service-ab")
    series = {one.name: one.values for one in made.samples}
    for line in figures.service_ab(f32, int8).splitlines()[2:]:
        workload, _, _, *of_int8 = (cell.strip() for cell in line.strip("|").split("|"))
        for metric, cell in zip(("TTFT p50", "throughput"), of_int8, strict=True):
            sides = [series.get(f"{workload}, {metric}, {side}") for side in ("reference", "auto")]
            if not cell:
                assert sides == [None, None]
                continue
            change = median(100 * (b / a - 1) for a, b in zip(*sides, strict=True))
            assert cell.startswith(f"{change:+.0f} % [")
    with pytest.raises(InputError, match="no record service-ab in f32; run: crucible ab --mode f32"):
        figures.service_ab(int8, int8)
    with pytest.raises(InputError, match="no record service-ab in f32"):
        figures.service_ab(h200 / "devices.json", int8)


def test_a_table_of_gates_can_stand_in_the_readme():
    made = readme.rewritten("a\n<!-- figures: gates -->\nstale words\n<!-- /figures -->\nb\n")
    assert made.startswith("a\n") and made.endswith("b\n") and "stale words" not in made
    assert "| tensor " in made and "cuda, h200" in made
