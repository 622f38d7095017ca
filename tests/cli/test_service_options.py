"""Options of what measures a service: what cannot be run is refused before a service is started."""

import os
import signal

import pytest

from crucible.cli.main import main
from crucible.cli.signals import term_is_interrupt
from crucible.service import started

GATE, RATES = ("gate", "service", "--quick"), ("--seconds", "1")
REFUSED = [
    ((*GATE, "--rate", "nan", "--overload", "5", *RATES), "rate nan must be a positive number"),
    ((*GATE, "--rate", "5", "--overload", "inf", *RATES), "rate inf must be a positive number"),
    ((*GATE, "--rate", "0", "--overload", "5", *RATES), "rate 0.0 must be a positive number"),
    ((*GATE, "--rate", "1e12", "--overload", "5", *RATES), "--rate 1e+12 for 1 s is more than 65536"),
    ((*GATE, "--rate", "5", "--overload", "1e7", *RATES), "--overload 1e+07 for 0.5 s is more than 65536"),
    ((*GATE, "--rate", "5"), "--rate and --overload belong together"),
    ((*GATE, "--queue", "999999999"), "less than or equal to 4096"),
    ((*GATE, "--seed=-1"), "greater than or equal to 0"),
    ((*GATE, "--seed", str(1 << 64)), "less than or equal to"),
    (("gate", "http", "--record", "a.json.gz", "--seed", str(1 << 64)), "less than or equal to"),
    (("bench", "service", "--apart", "inf"), "less than or equal to 60000"),
    (("bench", "service", "--json", "/"), "cannot write /: it is not a regular file"),
    (("serve", "--port", "0", "--port-file", "/"), "cannot write /: it is not a regular file"),
    *(
        (
            ("serve", "--port", "0", f"--{name}", str(1 << bits)),
            f"{1 << bits} must be at most {(1 << 31) - 1}",
        )
        for name in ("queue", "prefill-budget", "chunk-cap", "decode-batch", "pages")
        for bits in (31, 64)
    ),
]


@pytest.mark.parametrize("arguments, said", REFUSED, ids=[" ".join(a[2:]) for a, _ in REFUSED])
def test_what_cannot_be_run_is_refused_before_a_service_is_started(
    arguments, said, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["crucible", *arguments])
    monkeypatch.setattr(started.Side, "running", lambda self: pytest.fail("a service was started"))
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert ended.value.code == 2 and said in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def untold():
    """SIGTERM fails the test where no command has taken it; the handler that does."""

    def fail(*_):
        pytest.fail("SIGTERM was not taken, and would have ended the command at once")

    before = signal.signal(signal.SIGTERM, fail)
    yield fail
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "arguments", [("gate", "service", "--quick"), ("gate", "http", "--record", "a.json.gz")], ids=" ".join
)
def test_a_gate_that_is_told_to_end_ends_its_service(arguments, monkeypatch, capsys, tmp_path, untold):
    """SIGTERM, as a scheduler or `timeout` sends it: by itself it would leave the service running."""
    ended = []

    class Running:
        def __enter__(self):
            return self

        @property
        def target(self):
            os.kill(os.getpid(), signal.SIGTERM)

        def __exit__(self, *_):
            ended.append("the service")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["crucible", *arguments, "--model", "synthetic-2x64"])
    monkeypatch.setattr(started.Side, "running", lambda self: Running())
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130 and "interrupted" in capsys.readouterr().err
    assert ended == ["the service"] and signal.getsignal(signal.SIGTERM) is untold


def test_sigterm_is_an_interrupt_inside_and_itself_again_afterwards(untold):
    with pytest.raises(KeyboardInterrupt), term_is_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is untold
