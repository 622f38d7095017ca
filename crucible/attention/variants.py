"""Every attention variant by name, what a name means on a device, and help for a name that is unknown."""

import difflib
import os

from crucible.attention import diagnostics, exact, fast, native, online, reference
from crucible.attention.base import Variant
from crucible.errors import InputError
from crucible.files import brief

ENVIRONMENT = "CRUCIBLE_PREFILL_ATTN"
AUTO = "auto"
SHOWN = 60  # characters of an unknown name that its error repeats

# A family is a module with a table VARIANTS; one more family is one more line here.
VARIANTS: dict[str, Variant] = {
    **reference.VARIANTS,
    **native.VARIANTS,
    **exact.VARIANTS,
    **fast.VARIANTS,
    **online.VARIANTS,
    **diagnostics.VARIANTS,
}

# The other spelling of an online diagnostic.
SHORT = {name.removeprefix("online-"): name for name in VARIANTS if name.startswith("online-q")}


def names() -> tuple[str, ...]:
    """Every name that can be asked for."""
    return (AUTO, *VARIANTS, *SHORT)


def find(name: str, source: str = "attention variant") -> str:
    """The registry's spelling of `name` (auto stays auto); InputError with the near names if unknown."""
    if not isinstance(name, str):
        raise InputError(f"{source} {brief(name, SHOWN)} must be a name; choose auto, reference or exact")
    if name == AUTO or name in VARIANTS:
        return name
    if name in SHORT:
        return SHORT[name]
    near = difflib.get_close_matches(name[:SHOWN].lower(), names(), n=4, cutoff=0.5)
    known = ", ".join(near) if near else "auto, reference, exact, exact-q4-k64 or online-q2-k32"
    hint = f"did you mean {known}" if near else f"choose {known}"
    raise InputError(f"unknown {source} {brief(name, SHOWN)}; {hint}{'?' if near else ''}")


def default() -> str:
    """The variant of a caller that asked for none: CRUCIBLE_PREFILL_ATTN if set, else auto."""
    name = os.environ.get(ENVIRONMENT)
    return find(name, f"variant in {ENVIRONMENT}") if name else AUTO


class Preferred(str):
    """A variant's name that is run where it covers a call; elsewhere the reference runs, visibly."""


def asked_for(variant: str | None) -> tuple[str, bool]:
    """(name, whether it is demanded) of what a call was given: a name, a Preferred, or None for `default`."""
    if variant is None:
        return default(), False
    return find(variant), not isinstance(variant, Preferred)


def stand_in(device_name: str, name: str) -> tuple[str, str]:
    """(variant, reason) that gives `name`'s arithmetic on a device; reason is "" where it is `name` itself.

    The cpu device has one kernel per arithmetic: rows, options and, where exact, keys of a tile are no
    part of that. The other devices read the short names exact and online-k… as one of their tiles.
    """
    if device_name in VARIANTS[name].launchers:
        return name, ""
    if device_name != "cpu":
        tile = {"exact": f"exact-{exact.STANDARD}"}.get(name) or name.replace("online-k", "online-q2-k")
        return tile, ""
    if name in exact.VARIANTS or name in fast.VARIANTS:
        return "exact", "on cpu one native kernel gives the bits of every exact variant"
    if name in online.VARIANTS:
        keys = name.split("-k")[1].split("-")[0]
        return f"online-k{keys}", "on cpu one native kernel gives the bits of every tile of these keys"
    return name, ""
