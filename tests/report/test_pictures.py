"""Pictures, excerpts and cases: the same bytes each time, and nothing shown that is not so."""

import builtins
import subprocess
import sys

import numpy as np
import pytest

from crucible import device
from crucible.errors import InputError
from crucible.evidence import record
from crucible.kv.slices import Slice
from crucible.numerics.bits import assert_same_bits
from crucible.numerics.scalar import sum256
from crucible.report import cases, orders, overview
from crucible.report.excerpts import excerpt
from crucible.report.explore import Explorer
from crucible.report.notebooks import root
from crucible.report.plots import layout, reference, results
from crucible.report.plots.style import png, save

TABLES = cases.page_tables([37, 5], 6, 3)


def test_every_arrangement_of_the_overview_has_the_digest_recorded_on_the_gpu():
    found = overview.digests(overview.outputs("cpu"))
    recorded = record.load(root() / overview.GPU_RECORD)[0]
    assert recorded.verdict == "pass" and dict(recorded.facts) == found
    assert len(set(found.values())) == 1


def test_a_picture_is_the_same_bytes_each_time(tmp_path):
    def draw():
        return layout.pools({"a": TABLES}, [37, 5], 6)

    assert png(draw()) == png(draw())
    first, second = (save(draw(), tmp_path / f"{i}.svg").read_bytes() for i in range(2))
    assert first == second and b"<dc:date>" not in first


def test_pictures_of_evidence_take_any_verdict_and_no_samples():
    items = [
        record.Record("a", "long claim " * 20, "c", "pass", 5, 5, 5),
        record.Record("b", "claim", "c", "fail", 9, 8, 7, 6),
        record.Record("c", "claim", "c", "measured"),
    ]
    assert png(results.compared(items)) and png(results.compared([]))
    assert png(results.brackets([record.Series("t", "ms", (1.0, 2.0))]))
    assert png(reference.nll({"x": [1.0, 2.0]}, ["a", "b"]))


def test_an_excerpt_shows_the_source_and_refuses_a_lost_anchor():
    shown = excerpt("contract.cuh", "float tree32(float p)")
    assert shown.text.startswith("__device__") and shown.text.endswith("}") and "__shfl_down" in shown.text
    cut = excerpt("contract.cuh", "float tree32(float p)", "return p", before=True)
    assert cut.text.count("\n") == 1
    for anchors in (("no such line",), ("float tree32(float p)", "no such line")):
        with pytest.raises(InputError, match="update the excerpt's anchor"):
            excerpt("contract.cuh", *anchors)


def test_the_explorer_renders_with_and_without_widgets(monkeypatch):
    def draw(position):
        return layout.lookup(TABLES, [37, 5], 6, 0, position)

    live = Explorer(draw, "caption", position=(0, 36, 20))._repr_mimebundle_()
    named = Explorer(lambda request: draw(request), "caption", request=(["A", "B"], 1))
    assert [c.options for c in named._widget.children[:1]] == [(("A", 0), ("B", 1))]
    assert live["image/png"].startswith(b"\x89PNG") and any("widget-view" in k for k in live)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    plain = Explorer(draw, "caption", position=(0, 36, 20))._repr_mimebundle_()
    assert set(plain) == {"image/png", "text/plain"} and plain["image/png"] == live["image/png"]


def test_a_case_gives_a_request_the_same_numbers_in_any_company():
    alone = cases.make([20, 9], slices=[Slice(0, 13, 7)], page_seed=4)
    busy = cases.make([20, 9], slices=[Slice(1, 0, 9), Slice(0, 17, 3), Slice(0, 13, 4)])
    assert np.isnan(alone.kpool).any() and np.array_equal(cases.only(busy, busy.q, 0), alone.q)
    outputs = [cases.only(case, case.run(device.get("cpu")), 0) for case in (alone, busy)]
    assert_same_bits(*outputs)


def test_other_orders_are_close_to_the_contracts_sum_but_have_other_bits():
    x = np.array([1.0, 2.0**-24, 2.0**-24, -1.0, *[2.0**-24] * 60], np.float32)[None]
    found = {name: order(x)[0] for name, order in orders.ORDERS.items()}
    assert len({*found.values(), sum256(x)[0]}) > 2
    assert np.allclose(list(found.values()), x.sum(dtype=np.float64), atol=1e-5)
    w = np.ones((3, 7), np.float32)
    assert orders.dot_split(np.arange(7, dtype=np.float32), w).tolist() == [21.0] * 3
    assert orders.ranking(np.array([5, 3, 9]), np.float32([1, 2, 1])).tolist() == [3, 5, 9]


def test_the_command_refuses_a_wrong_parameter_in_one_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("01_paged_layout: {num_page: 3}\n")
    command = [
        sys.executable,
        "-c",
        "from crucible.cli.main import main; main()",
        "report",
        "--params",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error:") and "did you mean num_pages" in done.stderr
