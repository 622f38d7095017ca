"""The picture of a pass's stages holds every stage once, fused or not."""

import pytest

from crucible.errors import InputError
from crucible.report.notebooks import root
from crucible.report.plots import stages

FUSED = {
    "empty interval": 9.0,
    "embed": 1.0,
    "qkv": 2.0,
    "o+residual": 3.0,
    "norm+quantize": 4.0,
    "argmax": 5.0,
}
PLAIN = {"norm": 1.0, "rope": 2.0, "kv_store": 3.0, "o": 4.0, "residual": 5.0, "down": 6.0, "final_head": 7.0}


@pytest.mark.parametrize("found", [FUSED, PLAIN])
def test_the_parts_add_up_to_the_stages_without_the_empty_interval(found):
    assert sum(stages.parts(found).values()) == sum(v for k, v in found.items() if k != stages.EMPTY)


def test_fused_and_separate_stages_fall_into_one_part():
    assert stages.parts(FUSED)["norms"] == 4 and stages.parts(FUSED)["o"] == 3
    plain = stages.parts(PLAIN)
    assert (plain["norms"], plain["rope, K/V store"], plain["o"], plain["down"]) == (1, 5, 9, 6)
    assert plain[stages.REST] == 7


def test_no_stage_of_the_committed_record_is_called_the_rest_by_mistake(tmp_path):
    assert stages.profiles(tmp_path / "none.json") == {}
    try:
        found = stages.profiles(root() / "outputs/h200/bench.json")
    except InputError as error:  # the package and its tests alone
        pytest.skip(str(error))
    assert len(found) >= 6
    known = {name for _, names in stages.PARTS.values() for name in names}
    left = {name for one in found.values() for name in one} - known - {stages.EMPTY}
    assert all(name.startswith(("embed", "final_", "argmax")) for name in left), left
    assert stages.stages(found).axes[0].get_xlabel().endswith("(%)")
