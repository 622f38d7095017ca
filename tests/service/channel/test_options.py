"""`crucible serve` before anything is served: its options, its address, and a signal that comes early."""

import os
import signal
import sys

import pytest

from crucible.cli import serve as cli
from crucible.errors import InputError, UnsupportedError
from crucible.service import hosts, serve


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
    assert hosts.is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])
def test_all_others_may_be_reached_by_anybody(host):
    assert not hosts.is_loopback(host)


def test_the_url_is_one_that_a_client_can_open():
    assert serve.url_of("127.0.0.1", 80) == serve.url_of("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert serve.url_of("::", 80) == "http://[::1]:80"


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--mode", "bf4"), "unknown mode 'bf4'; choose one of f32, int8"),
        (("--log-level", "loud"), "unknown --log-level 'loud'; choose one of debug, info, warning, error"),
        (("--api-key", " "), "the API key is empty"),
        (("--api-key", "caf\u00e9"), "the API key holds a space or a character outside ASCII"),
        (("--api-key", "two words"), "the API key holds a space or a character outside ASCII"),
        (("--api-key", "line\n"), "the API key holds a space or a character outside ASCII"),
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


def test_the_port_of_an_earlier_run_is_gone_before_the_model_is_loaded(command, tmp_path):
    """Whoever waits for the file would knock at a port where nobody is."""
    port_file = tmp_path / "port"
    port_file.write_text("1\n")
    options = ("--model", "no-such-model", "--port", "0", "--port-file", str(port_file))
    assert command("serve", *options)[0] == 2 and not port_file.exists()


def test_the_port_file_of_a_service_that_runs_outlives_one_that_finds_its_port_taken(command, tmp_path):
    port_file = tmp_path / "port"
    with serve.bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        port_file.write_text(port)
        code, _, err = command("serve", "--port", port, "--port-file", str(port_file))
    assert code == 2 and "is in use" in err and port_file.read_text() == port


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


def test_a_signal_before_anything_is_loaded_stops_as_told(command, monkeypatch):
    def signalled(model):
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("crucible.cli.fetch.fetch_if_known", signalled)
    code, out, err = command("serve", "--model", "synthetic-2x64", "--port", "0")
    assert (code, out, err) == (0, "", "stopped before the model was loaded\n")
    assert signal.getsignal(signal.SIGTERM) is before
