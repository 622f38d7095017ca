"""Options and fixtures of every layer: slow and gpu selection, one cpu device per vector level."""

import collections
import functools

import hypothesis
import pytest

from crucible.device.cpu import CpuDevice, available_levels

# An example that a busy machine held up is no slow example.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the long sweeps too")
    parser.addoption("--record", help="write an evidence record of this run's tests to a file")


@functools.cache
def _no_gpu() -> str | None:
    """Why the cuda device cannot be had here, or None."""
    from crucible import device
    from crucible.errors import CrucibleError

    try:
        device.get("cuda")
    except (CrucibleError, ImportError) as error:
        return str(error)
    return None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="long sweep; run with --slow"))
        if "gpu" in item.keywords and _no_gpu() is not None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU (crucible doctor says what is here)"))


def pytest_terminal_summary(terminalreporter, config):
    path = config.getoption("--record")
    if path is None:
        return
    from crucible.evidence.environment import capture
    from crucible.evidence.record import Record, save

    outcomes = {
        name: terminalreporter.stats.get(name, []) for name in ("passed", "failed", "error", "skipped")
    }
    args = list(config.invocation_params.args)
    at = next(i for i, a in enumerate(args) if str(a).startswith("--record"))
    del args[at : at + (1 if "=" in str(args[at]) else 2)]  # where the record went is no part of the claim
    broken = outcomes["failed"] + outcomes["error"]
    device = "cpu" if _no_gpu() else "cuda"
    record = Record(
        kind="tests",
        claim=f"pytest {' '.join(map(str, args))}",
        compared="each test's own claim, one line a module",
        verdict="fail" if broken or not outcomes["passed"] else "pass",
        facts={
            **{name: len(found) for name, found in outcomes.items()},
            **collections.Counter(r.nodeid.split("::")[0] for r in outcomes["passed"]),
        },
        not_claimed=tuple(r.nodeid for r in broken),
        environment=capture(device),
    )
    save(path, [record])


@functools.cache
def _cpu(level: str) -> CpuDevice:
    return CpuDevice(level)


@pytest.fixture(params=available_levels())
def cpu(request) -> CpuDevice:
    """The cpu device, once per vector level that this processor can run."""
    return _cpu(request.param)
