"""Evidence files: what is written is read back; a bad or self-contradicting file is refused."""

import json

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.evidence.environment import capture, git_state, kernel_digest
from crucible.evidence.record import Record, Series, counts, load, save, to_json


def example(**changes) -> Record:
    values = dict(
        kind="kernel",
        claim="simt gives the bits of cpu",
        compared="attention output",
        verdict="pass",
        elements=8,
        finite=8,
        nonzero=7,
        facts={"digest": "ab", "rows": 4, "worst": 1.01},
        samples=(Series("time", "ms", (1.5, 2.0), ("a", "b")),),
        not_claimed=("speed",),
    )
    return Record(**{**values, **changes})


def test_a_record_survives_the_round_trip_byte_for_byte(tmp_path):
    records = [example(environment=capture()), example(verdict="measured", claim="µ ≥ 1")]
    path = save(tmp_path / "deep" / "e.json", records)
    assert load(path) == records
    assert to_json(load(path)) == path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["e.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "passed"}, "verdict 'passed'"),
        ({"differing": 1}, "a pass cannot have 1 differing"),
        ({"nonzero": 0}, "all zero proves nothing"),
        ({"finite": 7}, "a pass needs finite = elements, got 7 of 8"),
        ({"finite": 9}, "finite = 9 must lie between 0 and elements = 8"),
        ({"samples": (Series("t", "s", (1.0,), ("a", "b")),)}, "1 values, 2 groups"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        example(**changes)


def _broken(change) -> str:
    body = json.loads(to_json([example()]))
    change(body)
    return json.dumps(body)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a readable evidence file"),
        ("[]", 'lacks "format"'),
        (_broken(lambda b: b.update(version=9)), "evidence version 9; this Crucible reads 1"),
        (_broken(lambda b: b.update(records={})), 'no list called "records"'),
        (_broken(lambda b: b["records"].append(3)), "record 1 must be an object"),
        (_broken(lambda b: b["records"][0].pop("claim")), "record 0: field 'claim' is missing"),
        (_broken(lambda b: b["records"][0].update(speed=1)), "unknown field 'speed'"),
        (_broken(lambda b: b["records"][0].update(elements="8")), "field 'elements' must be int"),
        (_broken(lambda b: b["records"][0].update(differing=2)), "record 0: a pass cannot have 2"),
        (_broken(lambda b: b["records"][0]["samples"][0].update(values=["x"])), "must be finite numbers"),
        (_broken(lambda b: b["records"][0].update(environment={"gpu": 1})), "environment: unknown field"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bad\.json") as caught:
        load(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(InputError, match="crucible report"):
        load(tmp_path / "none.json")


def test_counts_see_nan_infinity_and_both_zeros():
    array = np.array([[1.0, np.nan, -0.0], [np.inf, 0.0, 2.0]], np.float32)
    assert counts(array) == {"elements": 6, "finite": 4, "nonzero": 4}


def test_the_environment_names_sources_and_commit(tmp_path):
    here = capture("cpu, simt")
    assert len(here.kernel_digest) == 32 and here.kernel_digest == kernel_digest()
    assert here.contract_version == 1 and here.device == "cpu, simt" and "numpy" in here.libraries
    assert git_state(tmp_path) == ("", False)
