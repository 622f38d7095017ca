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

from crucible.cli import serve as cli
from crucible.engine.request import Request
from crucible.errors import InputError, UnsupportedError
from crucible.service import serve

LONG = Request("never ends", 900, ignore_eos=True)
ENTRY = "from crucible.cli.main import main; main()"
COMMAND = (sys.executable, "-c", ENTRY, "serve", "--model", "synthetic-2x64")


class Served:
    """A `crucible serve` process of the tiny model that takes requests."""

    def __init__(self, tmp_path: Path, *options: str):
        port_file, self.said = tmp_path / "port", tmp_path / "said"
        where = ["--device", "cpu", "--port", "0", "--port-file", str(port_file)]
        self.process = subprocess.Popen(
            [*COMMAND, *where, *options],
            stdout=subprocess.PIPE,
            stderr=self.said.open("w"),
            text=True,
        )
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

    def engine(self) -> int:
        """The process of the engine."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(
            int(pid) for pid in children if b"channel.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    def end(self) -> tuple[int, str]:
        """(exit code, stderr) once the process has ended."""
        self.process.communicate(timeout=30)
        return self.process.returncode, self.said.read_text()


@pytest.fixture
def served(tmp_path):
    """served(*options) -> Served, killed after the test if it still runs."""
    with contextlib.ExitStack() as stack:

        def start(*options):
            made = Served(tmp_path, *options)
            stack.callback(made.process.communicate)
            stack.callback(made.process.kill)
            return made

        yield start


def last_event(reply: http.client.HTTPResponse) -> dict:
    """The data of the last event of a stream."""
    lines = [line for line in reply.read().decode().splitlines() if line.startswith("data: {")]
    return json.loads(lines[-1].removeprefix("data: "))


def test_a_signal_lets_running_replies_end_and_counts_the_pages(served, alone, until):
    one = served("--log-level", "error")
    assert one.first_line == f"serving synthetic-2x64 f32 on cpu at http://127.0.0.1:{one.port}\n"
    reply = one.ask(LONG)
    assert reply.status == 200
    one.process.send_signal(signal.SIGTERM)
    until(one.said.read_text, "it has heard the signal")
    refused = one.ask(LONG, stream=False)
    assert refused.status == 503 and "shutting down" in refused.read().decode()
    assert last_event(reply)["tokens"] == alone(LONG).tokens
    code, err = one.end()
    assert code == 0 and err.splitlines()[-1] == "stopped; 0 of 1024 pages in use"


def test_replies_that_take_too_long_after_a_signal_are_cancelled(served, alone):
    one = served("--log-level", "error", "--drain-seconds", "0")
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


def test_a_second_signal_stops_at_once(served, until):
    one = served("--log-level", "error")
    engine, reply = one.engine(), one.ask(LONG)
    one.process.send_signal(signal.SIGINT)
    until(one.said.read_text, "it has heard the signal")
    one.process.send_signal(signal.SIGINT)
    code, err = one.end()
    assert code == 130 and err.splitlines()[-1] == "stopped at once; what ran was cut off"
    assert reply.status == 200
    until(lambda: not Path(f"/proc/{engine}").exists(), "the engine ends too")


def test_the_service_ends_with_an_engine_that_was_killed_and_tells_its_clients(served, alone):
    one = served("--log-level", "error")
    reply = one.ask(LONG)
    assert reply.readline() == b"event: tokens\n"
    os.kill(one.engine(), signal.SIGKILL)
    assert "was killed by SIGKILL" in last_event(reply)["error"]["message"]
    code, err = one.end()
    assert code == 1
    assert err.splitlines()[-1] == "error: the engine stopped: the engine's process was killed by SIGKILL"


def test_an_engine_that_was_killed_is_replaced_on_demand(served, alone, until):
    one = served("--log-level", "error", "--restart")
    first = one.engine()
    os.kill(first, signal.SIGKILL)

    def ready():
        connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=30)
        connection.request("GET", "/health/ready")
        status = connection.getresponse().status
        connection.close()
        return status

    until(lambda: ready() == 503, "the death is reported")
    until(lambda: ready() == 200, "another engine takes requests")
    assert one.engine() != first
    assert last_event(one.ask(LONG))["tokens"] == alone(LONG).tokens
    one.process.send_signal(signal.SIGTERM)
    assert one.end()[0] == 0


def test_a_device_that_the_engine_lacks_is_one_sentence_and_exit_code_2():
    command = [*COMMAND, "--port", "0", "--device", "tpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: unknown device 'tpu'; choose one of cpu, simt, cuda or auto\n"


def test_a_port_that_is_taken_is_one_sentence():
    with serve.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is in use; choose another --port"):
            serve.bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_a_host_that_is_not_here_is_one_sentence(host):
    with pytest.raises(InputError, match="--host"):
        serve.bind(host, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_some_hosts_are_reached_from_this_machine_only(host):
    assert serve.is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])
def test_all_others_may_be_reached_by_anybody(host):
    assert not serve.is_loopback(host)


def test_the_url_is_one_that_a_client_can_open():
    assert serve.url_of("127.0.0.1", 80) == serve.url_of("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert serve.url_of("::", 80) == "http://[::1]:80"


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--mode", "bf4"), "unknown mode 'bf4'; choose one of f32, int8"),
        (("--log-level", "loud"), "unknown --log-level 'loud'; choose one of debug, info, warning, error"),
        (("--api-key", " "), "the API key is empty"),
        (
            ("--attention", "online-q2-k32"),
            "attention variant online-q2-k32 does not keep",
        ),
        (("--attention", "exat"), "unknown attention variant 'exat'; did you mean"),
        (("--port-file", f"{__file__}/port"), "cannot write"),
        (("--model", "no-such-model"), "no model at no-such-model"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_option_that_cannot_be_is_refused_before_anything_starts(command, options, sentence):
    code, out, err = command("serve", "--model", "synthetic-2x64", "--port", "0", *options)
    assert code == 2 and out == "" and err.startswith(f"error: {sentence}")


@pytest.mark.parametrize(
    "host, key, warned",
    [("0.0.0.0", (), True), ("0.0.0.0", ("--api-key", "k"), False), ("127.0.0.1", (), False)],
    ids=["anybody", "with a key", "this machine"],
)
def test_a_service_that_others_reach_without_a_key_is_warned_of(command, host, key, warned):
    code, _, err = command("serve", "--model", "no-such-model", "--host", host, "--port", "0", *key)
    assert code == 2
    assert (f"warning: everybody who reaches {host} may use this service; set --api-key\n" in err) is warned


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: command(*arguments) -> (exit code, stdout, stderr)."""
    from crucible.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["crucible", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_only_exact_attention_is_served(monkeypatch):
    assert cli.exact_variant("exact-q4-k64") == "exact-q4-k64" and cli.exact_variant(None) == "auto"
    monkeypatch.setenv("CRUCIBLE_PREFILL_ATTN", "online-k32")
    with pytest.raises(UnsupportedError, match="online-k32 does not keep"):
        cli.exact_variant(None)
    assert cli.exact_variant("auto") == "auto"


def test_a_model_answers_to_its_name_or_that_of_its_file(tmp_path):
    (tmp_path / "small.v2.gguf").touch()
    names = [cli.public_name(str(name)) for name in ("smollm2", tmp_path / "small.v2.gguf", tmp_path)]
    assert names == ["smollm2", "small.v2", tmp_path.name]
