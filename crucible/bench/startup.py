"""Start-up times, each in a fresh process: interpreter, import, command line, a model's first token."""

import subprocess
import sys
import time
from collections.abc import Callable

from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import interleave
from crucible.errors import UnavailableError

_MAIN = "from crucible.cli.main import main; main()"
_FIRST_TOKEN = """
from crucible.model.generate import generate
from crucible.model.model import Model
generate(Model.load({model!r}, device="cpu", mode={mode!r}), "Hello", max_tokens=1, digests=False)
"""


def _fresh(*arguments: str) -> Callable[[], float]:
    def sample() -> float:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        elapsed = time.perf_counter() - start
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            raise UnavailableError(f"a start-up benchmark's process failed: {said[-1]}")
        return elapsed

    return sample


def run(model: str, rounds: int = 5) -> Outcome:
    """Wall seconds of each start, the interpreter's own start included; compiled kernels are in the cache."""
    starts = {
        "python": ("an interpreter that does nothing", _fresh("-c", "pass")),
        "import crucible": ("the import", _fresh("-c", "import crucible")),
        "crucible --version": ("the command line", _fresh("-c", _MAIN, "--version")),
        "first token f32": ("load and one token", _fresh("-c", _FIRST_TOKEN.format(model=model, mode="f32"))),
        "first token int8": (
            "load and one token",
            _fresh("-c", _FIRST_TOKEN.format(model=model, mode="int8")),
        ),
    }
    samples = interleave({name: call for name, (_, call) in starts.items()}, rounds)
    stopped = len(samples["python"]) < rounds
    contenders = tuple(
        Contender(name, what, "s", tuple(samples[name]), ours=True) for name, (what, _) in starts.items()
    )
    return Outcome(f"start-up, {model}", contenders, higher_is_better=False, stopped=stopped)
