"""One engine in a process of its own: a JSON request a line on stdin, a JSON answer a line on stdout."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from crucible.errors import CrucibleError, UnavailableError


def peak_memory() -> int:
    """The most resident bytes this process ever had (0 where the system does not tell).

    VmHWM and not getrusage: the latter carries the parent's peak across fork and exec.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def serve(name: str, model: str, threads: int) -> None:
    """Load engine `name`, say so, then answer until stdin ends."""
    from crucible.bench.engines import ENGINES

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever an engine prints by itself must not mix with the answers
    make, mode = ENGINES[name]
    try:
        start = time.perf_counter()
        engine = make(model, mode, threads)
    except CrucibleError as error:
        print(json.dumps({"absent": str(error)}), file=answers)
        return
    loaded = time.perf_counter() - start
    ready = {"arithmetic": engine.arithmetic, "version": engine.version, "load_seconds": loaded}
    print(json.dumps(ready), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prefill":
            answer = {"seconds": engine.prefill(request["ids"])}
        elif request["do"] == "decode":
            seconds, tokens = engine.decode(request["ids"], request["steps"])
            answer = {"seconds": seconds, "tokens": tokens}
        else:
            answer = {"peak_bytes": peak_memory()}
        print(json.dumps(answer), file=answers)


@dataclass(eq=False)
class Worker:
    """The caller's end of an engine's process; use `with`. Raises UnavailableError when it cannot load."""

    name: str
    model: str
    threads: int
    python: str = sys.executable
    arithmetic: str = ""
    version: str = ""
    load_seconds: float = 0.0
    _unread: int = 0
    _process: subprocess.Popen | None = field(default=None, repr=False)
    _said: IO[str] | None = field(default=None, repr=False)

    def __enter__(self) -> "Worker":
        command = [self.python, "-m", "crucible.bench.worker", self.name, self.model, str(self.threads)]
        counts = {
            name: str(self.threads) for name in ("CRUCIBLE_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        }
        self._said = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would fill and block the engine
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                env={**os.environ, **counts},
                start_new_session=True,  # a terminal's Ctrl-C is for the caller, who ends the engine
            )
        except OSError as error:
            raise UnavailableError(f"cannot start {self.python}: {error.strerror}") from None
        try:
            ready = self._answer()
            if "absent" in ready:
                raise UnavailableError(ready["absent"])
        except BaseException:
            self.__exit__()
            raise
        self.arithmetic, self.version = ready["arithmetic"], ready["version"]
        self.load_seconds = ready["load_seconds"]
        return self

    def ask(self, do: str, **request) -> dict:
        """Send one request and wait for its answer; one that a Ctrl-C left unread is passed over first."""
        while self._unread:
            self._answer()
            self._unread -= 1
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        self._unread = 1
        answer = self._answer()
        self._unread = 0
        return answer

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines() or ["it said nothing"]
        raise UnavailableError(f"the process of {self.name} ended: {said[-1]}")

    def __exit__(self, *unused) -> None:
        if self._process is not None:
            self._process.stdin.close()
            try:
                self._process.wait(timeout=0.1 if self._unread or not self.version else 10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
        if self._said is not None:
            self._said.close()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
