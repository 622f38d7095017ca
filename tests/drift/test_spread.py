"""What happens to a process that shares the sequences reaches the person who started it as a sentence."""

import pickle

import pytest

from crucible import device
from crucible.drift.corpus import Corpus, prompts_of
from crucible.drift.spread import measuring
from crucible.errors import CrucibleError, InputError, NoKernelError
from crucible.gates.drift import DriftGate
from crucible.gates.model_parts import load
from crucible.model.model import TINY


def test_a_refusal_of_a_worker_process_arrives_as_it_was():
    sent = NoKernelError("flex", "simt", "cuda")
    back = pickle.loads(pickle.dumps(sent))
    assert type(back) is NoKernelError and str(back) == str(sent) and vars(back) == vars(sent)


@pytest.mark.parametrize(("jobs", "sequences"), [(0, 3), (1, 0), (2, 0), (1, -1)])
def test_nothing_to_measure_is_refused_with_any_number_of_processes(jobs, sequences):
    model = load(TINY, device.get("cpu"), "f32")
    with (
        pytest.raises(InputError, match="give at least one"),
        measuring(model, ["tf32"], jobs, TINY) as measure,
    ):
        list(measure(Corpus(prompts_of(model)), sequences))


@pytest.mark.parametrize(
    ("when", "what", "said"),
    [
        ("import", "raise ValueError('boom')", "theirs.py does not run: ValueError: boom"),
        ("call", "os._exit(9)", "one of 2 drift processes ended in the middle"),
    ],
)
def test_a_process_that_cannot_go_on_is_heard_in_a_sentence(tmp_path, when, what, said):
    path = tmp_path / "theirs.py"
    only = f"if multiprocessing.parent_process() is not None: {what}\n"
    path.write_text(
        "import multiprocessing, os\nfrom crucible.attention.run import attention as ours\n"
        + (only if when == "import" else "")
        + "def attention(device, q, kpool, vpool, tables, desc, layer, Hkv, D, out):\n"
        + (f"    {only}" if when == "call" else "")
        + "    return ours(device, q, kpool, vpool, tables, desc, layer, Hkv, D, 'split-sum')\n"
    )
    gate = DriftGate(load(TINY, device.get("cpu"), "f32"), [str(path)], 2, steps=1, jobs=2, spec=TINY)
    with pytest.raises(CrucibleError, match=said):
        list(gate.work())
