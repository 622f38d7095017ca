"""What `crucible doctor` says of attention: the default, the variants of each device, what falls back."""

import os
from typing import Any


def attention() -> dict[str, Any]:
    """What attention runs by default, which variants there are and where, and what they do not cover."""
    from crucible.attention import dispatch
    from crucible.attention.variants import ENVIRONMENT, VARIANTS, default
    from crucible.device.base import NAMES

    chosen = default()
    found = {"default": f"{chosen} (from {ENVIRONMENT})" if os.environ.get(ENVIRONMENT) else chosen}
    for name in NAMES:
        here = [v for v in VARIANTS.values() if name in v.launchers]
        kept = sum(v.exact for v in here)
        found[name] = f"{kept} exact variants, {len(here) - kept} diagnostics"
    made = dispatch.load().provenance
    found["auto"] = f"chosen by a table measured on {made['device']}, {made['taken_at']}"
    found |= names()
    found["falls back"] = falls_back(chosen)
    return found


def names() -> dict[str, str]:
    """The names of all variants by group; braces hold alternatives, brackets what may be left out."""
    from crucible.attention import diagnostics, exact, fast, native, online, reference

    options = "[-hybrid][-cache]"
    one = next(t for t in online.TILES if t.hybrid)
    online_names = f"{_grid('online', online.TILES)}, online-q{one.rows}-k{one.keys}{options}"
    return {
        "exact": ", ".join((*reference.VARIANTS, *native.VARIANTS, _grid("exact", exact.TILES) + options)),
        "fast (exact)": ", ".join(fast.VARIANTS),
        "online": f"{online_names}, online-k{_braces(online.KEYS)}",
        "diagnostics": ", ".join(diagnostics.VARIANTS),
    }


def _grid(family: str, tiles) -> str:
    return f"{family}-q{_braces(t.rows for t in tiles)}-k{_braces(t.keys for t in tiles)}"


def _braces(numbers) -> str:
    return "{" + ",".join(map(str, sorted(set(numbers)))) + "}"


def falls_back(chosen: str) -> str:
    """Which calls run something else than `chosen` when it is the default, and what."""
    from crucible.attention import exact, fast, online
    from crucible.attention.variants import AUTO, stand_in
    from crucible.device.base import NAMES, default_name

    if chosen == AUTO:
        return "auto runs the first variant of its ranking that covers a call, last of all the reference"
    if chosen == "reference":
        return "nothing; histories past a block's shared memory are refused on simt and cuda"
    lacking = [name for name in NAMES if stand_in(name, chosen)[0] not in _with_kernels(name)]
    if lacking:
        auto = default_name()
        where = " and ".join(f"{n} (what auto is here)" if n == auto else n for n in lacking)
        return f"every call on {where} to the reference: {chosen} has no kernel there; each result says so"
    if chosen in fast.VARIANTS:
        limits = f"groups of more than {fast.GROUPS[-1]} heads, other head_dims than {_dims(fast.HEAD_DIMS)}"
    elif chosen in exact.VARIANTS or chosen in online.VARIANTS or chosen == "exact":
        limits = f"other head_dims than {_dims(exact.HEAD_DIMS)}, more than {exact.MAX_WARPS} warps a block"
    else:
        limits = ""
    limits += ", " * bool(limits) + "histories that it has no room for"
    return f"on simt and cuda to the reference: {limits}; a call's result says so"


def _with_kernels(device_name: str) -> set[str]:
    from crucible.attention.variants import VARIANTS

    return {name for name, v in VARIANTS.items() if device_name in v.launchers}


def _dims(dims) -> str:
    return " and ".join(map(str, dims))
