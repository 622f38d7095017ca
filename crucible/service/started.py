"""A service in a process of its own, with its own build, variant and limits: started, waited for, ended."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import crucible
from crucible.errors import InputError, UnavailableError
from crucible.files import shown
from crucible.service.load.target import Target

_START = 300.0  # seconds until requests are taken: a GPU may have kernels to compile
_END = 40.0
_SERVE = ("-c", "from crucible.cli.main import main; main()", "serve")
_ASK = """
import json
from crucible.evidence.environment import capture
e = capture()
names = ("crucible", "commit", "dirty", "kernel_digest", "contract_version")
print(json.dumps({name: getattr(e, name) for name in names}))
"""


@dataclass(frozen=True)
class Build:
    """An installed Crucible: the interpreter that runs it, and the checkout put before its own packages."""

    python: str
    checkout: str = ""

    def environment(self) -> dict[str, str]:
        """Variables of its processes; the caller's PYTHONPATH and commit's name reach no other build.

        Nor does a key reach a service: who starts one here sends none.
        """
        ours = self == own_build()
        left_out = {"CRUCIBLE_API_KEY"} if ours else {"CRUCIBLE_API_KEY", "CRUCIBLE_COMMIT"}
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        beside = kept.get("PYTHONPATH", "") if ours else ""
        return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (self.checkout, beside)))}

    @functools.cache  # noqa: B019 - builds are few and live as long as the process
    def identity(self) -> dict[str, object]:
        """Version, commit, kernel digest and contract version; UnavailableError where it does not run."""
        command = [self.python, "-c", _ASK]
        with tempfile.TemporaryDirectory() as elsewhere:  # a package in the current folder comes first
            done = subprocess.run(
                command, capture_output=True, text=True, env=self.environment(), cwd=elsewhere, check=False
            )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise UnavailableError(f"{self.python} does not run this build of crucible: {said}")
        return json.loads(done.stdout.strip().splitlines()[-1])


def own_build() -> Build:
    """The Crucible that is running."""
    return Build(sys.executable, str(Path(crucible.__file__).resolve().parents[1]))


def build_at(path: Path | None) -> Build:
    """The build at a virtual environment, an interpreter, or a checkout (run by ours); None: our own.

    InputError for anything else.
    """
    if path is None:
        return own_build()
    path = path.absolute()  # not resolved: an environment's python is a link out of it
    if (path / "bin" / "python").is_file():
        return Build(str(path / "bin" / "python"))
    if (path / "crucible" / "__init__.py").is_file():
        return Build(sys.executable, str(path))
    if path.is_file() and os.access(path, os.X_OK):
        return Build(str(path))
    raise InputError(
        f"{shown(path)} is no build of crucible; give a virtual environment, its python, or a checkout"
    )


@dataclass(frozen=True)
class Side:
    """A name, a build, and the arguments of its `crucible serve`; `program` replaces that command (tests)."""

    name: str
    build: Build
    arguments: tuple[str, ...] = ()
    program: tuple[str, ...] = ()

    @contextlib.contextmanager
    def running(self) -> Iterator["Server"]:
        """Start a fresh process and end it; UnavailableError where it does not come to take requests."""
        with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "said", "w+") as said:
            ports = Path(folder) / "port"
            command = [self.build.python, *(self.program or _SERVE), *self.arguments]
            command += ["--port", "0", "--port-file", str(ports)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self.build.environment(),
                cwd=folder,
                start_new_session=True,  # a terminal's Ctrl-C is for the caller, who ends the service
            )
            try:
                began = time.perf_counter()
                port = _wait(process, ports, said, self.name)
                yield Server(Target("127.0.0.1", port), time.perf_counter() - began, process.pid)
            finally:
                _end(process)


@dataclass(frozen=True)
class Server:
    """A running service: where it listens, the seconds that it took to start, and its process."""

    target: Target
    seconds: float
    pid: int


def _wait(process: subprocess.Popen, ports: Path, said, name: str) -> int:
    end = time.monotonic() + _START
    while not ports.exists():
        if process.poll() is not None:
            said.seek(0)
            last = (said.read().strip().splitlines() or ["it said nothing"])[-1]
            raise UnavailableError(f"the service of side {name} ended before it took requests: {last}")
        if time.monotonic() > end:
            raise UnavailableError(f"the service of side {name} took no request within {_START:g} s")
        time.sleep(0.02)
    return int(ports.read_text())


def _end(process: subprocess.Popen) -> None:
    """Ask it to stop; whatever is left of its session after that is killed."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END)
    finally:  # a second Ctrl-C does not wait, and leaves nothing behind either
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def arguments(model: str, mode: str, device: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Arguments of `crucible serve` that every side has.

    A model's path is made absolute, since services run in other folders.
    """
    from crucible.model.fetch import SOURCES
    from crucible.model.synthetic import NAME, TINY

    if model not in (*SOURCES, NAME, TINY) and os.path.exists(os.path.expanduser(model)):
        model = os.path.abspath(os.path.expanduser(model))
    return ("--model", model, "--mode", mode, "--device", device, *more)
