"""A user's kernel in the engine: asked for by file, run as it is, never taken for one that keeps the bits."""

import pytest

from crucible import device as devices
from crucible.attention import user
from crucible.attention.variants import ENVIRONMENT, VARIANTS
from crucible.device.sources import kernels_dir
from crucible.engine.engine import Engine
from crucible.engine.scheduler import Limits
from crucible.errors import InputError, NoKernelError, UnsupportedError
from crucible.gates.engine_record import tiny_model

PROMPT = [40, 41, 42, 43, 44, 45, 46, 47, 48]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """installed(text of a kernel) -> the variant's name, set for engines; unregistered after the test."""
    names = []

    def install(source: str) -> str:
        path = tmp_path / "mine.cu"
        path.write_text(source)
        names.append(user.install(f"{path}:attention_reference", devices.get("simt")))
        monkeypatch.setenv(ENVIRONMENT, names[-1])
        return names[-1]

    yield install
    for name in names:
        del VARIANTS[name]


def tokens(device="simt") -> list[int]:
    with Engine(tiny_model(device), Limits(pages=4)) as engine:
        return engine.generate([PROMPT], max_tokens=3, ignore_eos=True)[0].tokens


def plain() -> str:
    return (kernels_dir() / "attention_reference.cu").read_text()


def test_a_kernel_that_keeps_the_bits_gives_the_references_tokens(installed):
    expected = tokens("cpu")
    name = installed(plain())
    assert tokens() == expected and not VARIANTS[name].exact


def test_a_kernel_that_does_not_is_run_as_it_is(installed):
    expected = tokens("cpu")
    changed = plain().replace("__fmul_rn(c, scale)", "__fmul_rn(c, -9.0f * scale)")
    assert changed != plain()
    installed(changed)
    assert tokens() != expected


def test_a_variant_of_other_roundings_stays_refused(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "online-q2-k32")
    with pytest.raises(UnsupportedError, match="exact ones only"):
        tokens("cpu")


def test_the_cpu_device_runs_no_cuda_source_and_a_file_must_be_there(tmp_path):
    path = tmp_path / "mine.cu"
    with pytest.raises(InputError, match="no kernel file"):
        user.install(str(path), devices.get("simt"))
    path.write_text("")
    with pytest.raises(NoKernelError, match="use --device simt"):
        user.install(str(path), devices.get("cpu"))


def test_its_contents_are_part_of_the_fingerprint(tmp_path):
    card = tiny_model()
    promised = card.fingerprint()
    path = tmp_path / "mine.cu"
    seen = {promised}
    for text in ("a", "b"):
        path.write_text(text)
        card.foreign = user.digest(str(path))
        seen.add(card.fingerprint())
    assert len(seen) == 3
