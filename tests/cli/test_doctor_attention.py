"""What `crucible doctor` says of attention: every variant by name, and what the default falls back from."""

import itertools
import re

import pytest

from crucible.attention.variants import ENVIRONMENT, VARIANTS
from crucible.cli import doctor_attention


def _expanded(pattern: str) -> set[str]:
    """The names that a pattern of braces and brackets stands for."""
    parts = re.split(r"(\{[^}]*\}|\[[^]]*\])", pattern)
    choices = [
        p[1:-1].split(",") if p.startswith("{") else ["", p[1:-1]] if p.startswith("[") else [p]
        for p in parts
    ]
    return {"".join(chosen) for chosen in itertools.product(*choices)}


def test_the_groups_hold_every_variant_once():
    groups = doctor_attention.names()
    patterns = [p for text in groups.values() for p in text.split(", ")]
    listed = [name for pattern in patterns for name in _expanded(pattern)]
    twice = {name for name in listed if listed.count(name) > 1}
    assert set(listed) == set(VARIANTS) and twice <= {"online-q2-k32"}
    exact = [p for group in ("exact", "fast (exact)") for p in groups[group].split(", ")]
    assert {n for p in exact for n in _expanded(p)} == {n for n, v in VARIANTS.items() if v.exact}


@pytest.mark.parametrize(
    ("auto", "where"), [("cpu", "cpu (what auto is here) and simt"), ("cuda", "cpu and simt")]
)
def test_a_default_without_a_kernel_on_a_device_is_said_to_fall_back_there(monkeypatch, auto, where):
    monkeypatch.setenv(ENVIRONMENT, "hardware-exp")
    monkeypatch.setattr("crucible.device.base.default_name", lambda: auto)
    found = doctor_attention.attention()
    assert found["default"] == f"hardware-exp (from {ENVIRONMENT})"
    assert found["falls back"] == (
        f"every call on {where} to the reference: hardware-exp has no kernel there; each result says so"
    )


def test_only_a_default_without_a_kernel_falls_back_at_every_call():
    always = [n for n in VARIANTS if doctor_attention.falls_back(n).startswith("every call")]
    assert always == ["hardware-exp"]


def test_what_falls_back_depends_on_the_default():
    texts = {n: doctor_attention.falls_back(n) for n in ("auto", "reference", "fast-t32", "exact", "tf32")}
    assert len(set(texts.values())) == len(texts)
    assert "head_dims" in texts["fast-t32"] and "warps" in texts["exact"] and "warps" not in texts["tf32"]


def test_doctor_prints_the_groups_and_the_fallback(crucible, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "hardware-exp")
    monkeypatch.setattr("crucible.cli.doctor.SECTIONS", {"attention": (doctor_attention.attention,)})
    code, out, _ = crucible("doctor")
    assert code == 0 and "fast-t32s" in out and "diagnostics" in out and "has no kernel there" in out
