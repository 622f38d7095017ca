"""The envelope through a run: readings beside a block, marks of what leaves its bound."""

import time

import pytest

from crucible.evidence import envelope, watch
from crucible.evidence.watch import Envelope, Watch, marks

STILL = Envelope({"SM clock, MHz": (1900.0, 1910.0), "CPU time of others, %": (3.0, 4.0)})


def test_a_watch_reads_until_its_block_ends():
    values = iter(range(10**6))
    with Watch(interval=0.001, read=lambda: {"x, MHz": next(values)}) as seen:
        while next(values) < 20:
            pass
    taken = seen.envelope.readings["x, MHz"]
    assert taken[0] == 0.0 and list(taken) == sorted(taken)


def test_the_reader_tells_what_this_machine_does():
    with Watch(interval=0.3) as seen:
        sum(i * i for i in range(10**6))
    assert seen.envelope.brackets()["load, 1 min"].samples >= 1


def test_time_of_this_process_is_its_own_and_not_that_of_others():
    before, began = watch.own_seconds(), time.process_time()
    while time.process_time() < began + 0.05:
        pass
    assert watch.own_seconds() >= before + 0.03


@pytest.mark.parametrize(
    "moved",
    [
        {"SM clock, MHz": (1700.0, 1710.0)},
        {"temperature, C": (70.0,)},
        {"CPU time of others, %": (3.0, 40.0, 45.0)},
    ],
)
def test_only_the_run_that_leaves_a_bound_is_marked(moved):
    cool = Envelope({**STILL.readings, "temperature, C": (50.0,)})
    found = marks([cool, cool, Envelope({**cool.readings, **moved})])
    assert found[:2] == [[], []] and found[2][0].startswith(next(iter(moved)))


def test_readings_within_their_bounds_and_power_mark_nothing():
    assert marks([STILL, Envelope({"SM clock, MHz": (1930.0,), "power, W": (700.0,)}), STILL]) == [[], [], []]
    assert marks([]) == []


@pytest.mark.gpu
def test_our_readings_of_a_gpu_are_those_of_nvidia_ml_py():
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle, ours = pynvml.nvmlDeviceGetHandleByIndex(0), envelope.gpu()
    assert ours.name == pynvml.nvmlDeviceGetName(handle)
    assert ours.driver == pynvml.nvmlSystemGetDriverVersion()
    assert ours.memory_total == pynvml.nvmlDeviceGetMemoryInfo(handle).total
    assert abs(ours.power - pynvml.nvmlDeviceGetPowerUsage(handle) / 1000) < 300
    assert abs(ours.temperature - pynvml.nvmlDeviceGetTemperature(handle, 0)) <= 15
