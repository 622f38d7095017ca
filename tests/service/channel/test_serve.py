"""`crucible serve` as a process: its lines, its signals, its exit codes."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.engine.request import Request

LONG = Request("never ends", 900, ignore_eos=True)
ENTRY = "from crucible.cli.main import main; main()"
COMMAND = (sys.executable, "-c", ENTRY, "serve", "--model", "synthetic-2x64")


class Served:
    """A `crucible serve` process of the tiny model; it takes requests, or still loads if not `ready`."""

    def __init__(self, tmp_path: Path, *options: str, ready: bool = True):
        port_file, self.said = tmp_path / "port", tmp_path / "said"
        where = ["--device", "cpu", "--port", "0", "--port-file", str(port_file)]
        self.process = subprocess.Popen(
            [*COMMAND, *where, *options],
            stdout=subprocess.PIPE,
            stderr=self.said.open("w"),
            text=True,
        )
        if not ready:
            return
        self.first_line = self.process.stdout.readline()
        assert port_file.exists(), self.said.read_text()
        self.port = int(port_file.read_text())

    def ask(self, request: Request, stream: bool = True) -> http.client.HTTPResponse:
        """A reply whose head has come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = {
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        connection.request("POST", "/v1/generate", json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse()

    def engine(self) -> int | None:
        """The process of the engine."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        engines = (
            int(pid) for pid in children if b"channel.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return next(engines, None)

    def end(self) -> tuple[int, str]:
        """(exit code, stderr) once the process has ended."""
        self.process.communicate(timeout=30)
        return self.process.returncode, self.said.read_text()


@pytest.fixture
def served(tmp_path, _brakes):
    """served(*options) -> Served, killed after the test if it still runs."""
    with contextlib.ExitStack() as stack:

        def start(*options, ready=True):
            made = Served(tmp_path, *options, ready=ready)
            stack.callback(made.process.communicate)
            stack.callback(made.process.kill)
            return made

        yield start


def last_event(reply: http.client.HTTPResponse) -> dict:
    """The data of the last event of a stream."""
    lines = [line for line in reply.read().decode().splitlines() if line.startswith("data: {")]
    return json.loads(lines[-1].removeprefix("data: "))


def test_a_signal_lets_running_replies_end_and_counts_the_pages(served, alone, until, brake):
    one = served("--log-level", "error")
    assert one.first_line == f"serving synthetic-2x64 f32 on cpu at http://127.0.0.1:{one.port}\n"
    with brake("slow"):
        reply = one.ask(LONG)
        assert reply.status == 200
        one.process.send_signal(signal.SIGTERM)
        until(lambda: "stopping" in one.said.read_text(), "it has heard the signal")
        refused = one.ask(LONG, stream=False)
    assert refused.status == 503 and "shutting down" in refused.read().decode()
    assert last_event(reply)["tokens"] == alone(LONG).tokens
    code, err = one.end()
    assert code == 0 and err.splitlines()[-1] == "stopped; 0 of 1024 pages in use"


def test_replies_that_take_too_long_after_a_signal_are_cancelled(served, alone, brake):
    one = served("--log-level", "error", "--drain-seconds", "0")
    with brake("slow"):
        reply = one.ask(LONG)
        one.process.send_signal(signal.SIGINT)
        end = last_event(reply)
    assert end["finish_reason"] == "cancelled"
    assert end["tokens"] == alone(LONG).tokens[: len(end["tokens"])]
    code, err = one.end()
    assert code == 0 and err.splitlines()[-2:] == [
        "0 s were not enough; requests that still run are cancelled: 1",
        "stopped; 0 of 1024 pages in use",
    ]


def test_a_second_signal_stops_at_once(served, until, brake):
    one = served("--log-level", "error")
    with brake("slow"):
        engine, reply = one.engine(), one.ask(LONG)
        one.process.send_signal(signal.SIGINT)
        until(lambda: "stopping" in one.said.read_text(), "it has heard the signal")
        one.process.send_signal(signal.SIGINT)
        code, err = one.end()
    assert code == 130 and err.splitlines()[-1] == "stopped at once; what ran was cut off"
    assert last_event(reply)["error"]["message"] == "the service stopped; what ran was cut off"
    until(lambda: not Path(f"/proc/{engine}").exists(), "the engine ends too")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_model_that_still_loads_is_given_up_at_a_signal(served, until, number):
    one = served(ready=False)
    until(one.engine, "the engine's process runs")
    engine = one.engine()
    os.kill(engine, signal.SIGSTOP)  # so that it loads for as long as it takes
    one.process.send_signal(number)
    code, err = one.end()
    assert code == 0 and err.splitlines() == [
        "loading synthetic-2x64 f32; a first start compiles kernels and takes longer",
        "stopping; once more stops at once",
        "stopped before the model was loaded",
    ]
    assert not Path(f"/proc/{engine}").exists()


def test_the_service_ends_with_an_engine_that_was_killed_and_tells_its_clients(served, alone, brake):
    one = served("--log-level", "error")
    with brake("slow"):
        reply = one.ask(LONG)
        assert reply.readline() == b"event: tokens\n"
        os.kill(one.engine(), signal.SIGKILL)
    assert "was killed by SIGKILL" in last_event(reply)["error"]["message"]
    code, err = one.end()
    assert code == 1
    assert err.splitlines()[-1] == "error: the engine stopped: the engine's process was killed by SIGKILL"


def test_an_engine_that_was_killed_is_replaced_on_demand(served, alone, until, brake):
    one = served("--log-level", "error", "--restart")
    first = one.engine()

    def ready():
        connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=30)
        connection.request("GET", "/health/ready")
        status = connection.getresponse().status
        connection.close()
        return status

    with brake("hold"):
        os.kill(first, signal.SIGKILL)
        until(lambda: ready() == 503, "the death is reported")
        refused = [one.ask(LONG, stream) for stream in (True, False)]
    assert [(reply.status, reply.headers["retry-after"]) for reply in refused] == [(503, "1")] * 2
    until(lambda: ready() == 200, "another engine takes requests")
    assert one.engine() != first
    assert last_event(one.ask(LONG))["tokens"] == alone(LONG).tokens
    one.process.send_signal(signal.SIGTERM)
    assert one.end()[0] == 0


def test_a_device_that_the_engine_lacks_is_one_sentence_and_exit_code_2():
    command = [*COMMAND, "--port", "0", "--device", "tpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[1:] == [
        "error: unknown device 'tpu'; choose one of cpu, simt, cuda or auto"
    ]
