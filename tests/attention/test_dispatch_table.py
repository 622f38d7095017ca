"""A dispatch table is data from a file: each fault is refused by name, and no table makes auto inexact."""

import dataclasses
import json

import pytest

from crucible.attention import dispatch
from crucible.attention.base import Problem
from crucible.attention.dispatch import TABLE, Point, Table, load
from crucible.attention.plan import plan_of
from crucible.attention.run import choose
from crucible.attention.variants import AUTO, VARIANTS
from crucible.device import get
from crucible.errors import InputError
from crucible.numerics.bits import assert_same_bits

from .conftest import made

GOOD = json.loads(TABLE.read_text())
POINT = GOOD["points"][0]
SEGMENTS = ((0, 9), (25, 16))


CHOOSE = "is no variant that auto may choose"


def point(**changes) -> dict:
    return {"points": [POINT, POINT | changes]}


FAULTS = {
    "no points": ({"points": []}, "points must be a list with at least one"),
    "points of text": ({"points": "x"}, "points must be a list with at least one"),
    "a point of text": ({"points": ["x"]}, "point 0 is 'x'; it must be an object"),
    "another format": ({"format": "x"}, "format 'x' must be crucible-attention-dispatch"),
    "a field more": (point(x=1), "point 1: a point has .*; it must have G, D, work"),
    "an unknown name": (
        point(us={"nonsense": 1.0}),
        f"point 1: 'nonsense' {CHOOSE}",
    ),
    "an inexact name": (
        point(us={"online-q2-k32": 1.0}),
        f"'online-q2-k32' {CHOOSE}",
    ),
    "a name of cpu": (point(us={"exact": 1.0}), f"'exact' {CHOOSE}"),
    "no variant": (point(us={}), "point 1: us {} must be microseconds by variant name"),
    "us of text": (point(us="x"), "point 1: us 'x' must be microseconds by variant name"),
    "work below 1": (point(work=-1), "point 1: work -1 must be at least 1"),
    "end below 1": (point(end=0), "point 1: end 0 must be at least 1"),
    "a shape of text": (point(G="4"), "point 1: G '4' must be a whole number"),
    "a time of text": (point(us={"fast-t32": "x"}), "point 1: time of fast-t32 'x' must be a number"),
    "a time of NaN": (
        point(us={"fast-t32": float("nan")}),
        "time of fast-t32 nan must be positive",
    ),
    "a time of 0": (point(us={"fast-t32": 0}), "time of fast-t32 0 must be positive"),
}


def written(folder, body):
    path = folder / "table.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    load.cache_clear()
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_with_the_file_and_what_is_right(fault, tmp_path):
    changes, says = FAULTS[fault]
    path = written(tmp_path, GOOD | changes)
    with pytest.raises(InputError, match=says) as found:
        load(path)
    assert str(found.value).startswith(f"{path} is not a dispatch table (")
    assert str(found.value).endswith("; run `crucible bench attention --device cuda --tune`")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '"x"'])
def test_a_file_of_something_else_is_refused(text, tmp_path):
    with pytest.raises(InputError, match="is not a dispatch table"):
        load(written(tmp_path, text))


def test_every_field_of_a_point_is_needed(tmp_path):
    for field in dataclasses.fields(Point):
        less = {name: value for name, value in POINT.items() if name != field.name}
        with pytest.raises(InputError, match="point 0: a point has"):
            load(written(tmp_path, GOOD | {"points": [less]}))


def test_the_table_that_the_faults_are_made_from_loads(tmp_path):
    assert len(load(written(tmp_path, GOOD)).points) == len(GOOD["points"])


INEXACT = [name for name, variant in VARIANTS.items() if not variant.exact]


def batch(name: str, monkeypatch):
    """A prepared case, its expected output and its problem, under a table that names one variant."""
    table = Table({}, (Point(2, 64, 1, 41, 1, 1, {name: 1.0}),))
    monkeypatch.setattr(dispatch, "load", lambda: table)
    prepared, expected = made(get("simt"), SEGMENTS, 2, 64)
    plan = plan_of(get("simt"), prepared.case.packed.desc, 2)
    return prepared, expected, Problem(*[None] * 6, 0, plan.rows, 4, 2, 64, None).planned(plan)


@pytest.mark.parametrize("name", [*INEXACT, "nonsense"])
def test_auto_runs_an_exact_variant_whatever_the_table_names(name, monkeypatch):
    *_, problem = batch(name, monkeypatch)
    assert VARIANTS[choose(get("simt"), problem, AUTO, demanded=True).variant].exact


def test_a_table_of_an_online_variant_does_not_change_a_bit(monkeypatch):
    prepared, expected, problem = batch("online-q2-k32", monkeypatch)
    assert_same_bits(expected, prepared.run(AUTO))
    monkeypatch.setattr(dispatch, "may_choose", lambda *names: True)
    assert choose(get("simt"), problem, AUTO, demanded=True).variant == "online-q2-k32"
