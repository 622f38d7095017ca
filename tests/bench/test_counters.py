"""Hardware counters: ncu's CSV is read as ncu writes it, and what is missing is said in one sentence."""

import pytest

from crucible.bench import counters
from crucible.errors import InputError, UnavailableError
from crucible.evidence import record

NS, OCCUPANCY, REGISTERS = (
    "gpu__time_duration.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "launch__registers_per_thread",
)
HEADINGS = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", NS, OCCUPANCY, REGISTERS)
MARK = ("crucible_mark()", "(1, 1, 1)", "(1, 1, 1)", "1,024", "1.5", "16")


def table(*launches) -> str:
    """What ncu writes: remarks, headings, units, a row a launch, a last remark."""
    units = ("", "", "", "", "", "ns", "%", "register/thread")
    rows = [HEADINGS, units, *((str(i), "77", *launch) for i, launch in enumerate(launches))]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    return f"==PROF== Connected to process 77 (/usr/bin/python3)\n{text}\n==PROF== Disconnected\n"


def launch(name: str, ns: str, occupancy: str = "50.25"):
    return (f"{name}(const float *, int)", "(256, 1, 1)", "(384, 1, 1)", ns, occupancy, "128")


def test_launches_belong_to_the_workload_whose_mark_they_follow():
    rows = counters.parse(table(MARK, launch("a", "1,042,976"), launch("b", "7"), MARK, launch("a", "9")))
    found = counters.grouped(rows, ["first", "second"])
    assert [(r.workload, r.kernel, r.counters["ns"]) for r in found] == [
        ("first", "a", 1042976.0),
        ("first", "b", 7.0),
        ("second", "a", 9.0),
    ]
    assert found[0].grid == "(384, 1, 1)" and found[0].block == "(256, 1, 1)"
    assert found[0].counters == {"ns": 1042976.0, "achieved occupancy %": 50.25, "registers": 128.0}


def test_launches_before_the_first_mark_are_no_ones():
    rows = counters.parse(table(launch("warm_up", "1"), MARK, launch("a", "2")))
    assert [r.kernel for r in counters.grouped(rows, ["only"])] == ["a"]


def test_a_counter_that_the_chip_lacks_is_left_out():
    rows = counters.parse(table(MARK, launch("a", "2", "n/a")))
    assert "achieved occupancy %" not in counters.grouped(rows, ["only"])[0].counters


@pytest.mark.parametrize("text", ["", "==WARNING== No kernels were profiled.\n", table()])
def test_output_without_launches_is_refused(text):
    with pytest.raises(InputError, match="holds no"):
        counters.parse(text)


def test_a_workload_that_launched_nothing_is_refused():
    with pytest.raises(InputError, match="no launch was seen of second"):
        counters.grouped(counters.parse(table(MARK, launch("a", "2"), MARK)), ["first", "second"])


def test_a_machine_without_ncu_is_told_in_one_sentence(monkeypatch):
    monkeypatch.setattr(counters.shutil, "which", lambda *_, **__: None)
    with pytest.raises(UnavailableError, match="hardware counters need Nsight Compute; put its ncu on"):
        counters.read("crucible.bench.attention_workloads:workloads")


def fake_ncu(folder, monkeypatch, body: str) -> None:
    """An `ncu` that is a shell script."""
    script = folder / "ncu"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(counters, "find", lambda: str(script))


def test_counters_that_the_driver_keeps_are_told_in_one_sentence(tmp_path, monkeypatch):
    fake_ncu(
        tmp_path, monkeypatch, 'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1'
    )
    with pytest.raises(UnavailableError, match="only an administrator read counters"):
        counters.read("x:y")


def test_what_the_child_says_is_passed_on(tmp_path, monkeypatch):
    fake_ncu(tmp_path, monkeypatch, 'echo "error: device cuda needs CuPy" >&2; exit 1')
    with pytest.raises(UnavailableError, match=r"ncu over x:y failed: error: device cuda needs CuPy"):
        counters.read("x:y")


def test_a_run_of_ncu_is_read_from_its_log_file(tmp_path, monkeypatch):
    (tmp_path / "made.csv").write_text(table(MARK, launch("a", "2")))
    fake_ncu(
        tmp_path,
        monkeypatch,
        'while [ "$1" != --log-file ]; do shift; done; for last; do :; done\n'
        f'cp {tmp_path}/made.csv "$2"; echo \'["only"]\' > "$last"',
    )
    found = counters.read("x:y")
    assert [(r.workload, r.kernel) for r in found] == [("only", "a")]
    kept = counters.to_record("test", found)
    record.save(tmp_path / "c.json", [kept])
    assert record.load(tmp_path / "c.json")[0].facts["only: a, registers"] == 128.0
    assert "only" in counters.text(found) and "50.25" in counters.text(found)
