"""Guards of plain arguments, shared by every entry: whole numbers, real numbers, arrays of whole numbers."""

import operator
from collections.abc import Sequence

import numpy as np

from crucible.errors import InputError


def whole(name: str, value, least: int | None = None, most: int | None = None) -> int:
    """`value` as an int within least..most, or InputError; a bool or a float is no whole number."""
    if type(value) is not int:
        try:  # a 0-d integer array is a number too: that is what an .npz gives for one
            array = isinstance(value, np.ndarray) and value.ndim > 0
            value = operator.index(None if isinstance(value, bool) or array else value)
        except TypeError:
            raise InputError(f"{name} {_short(value)} must be a whole number") from None
    if least is not None and value < least:
        raise InputError(f"{name} {_short(value)} must be at least {least}")
    if most is not None and value > most:
        raise InputError(f"{name} {_short(value)} must be at most {most}")
    return value


def real(name: str, value) -> float:
    """`value` as a float (NaN and infinities too), or InputError; text and a bool are no number."""
    try:
        if isinstance(value, (bool, np.bool_, str, bytes, bytearray, np.ndarray)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} {_short(value)} must be a number") from None


def check_eps(eps) -> np.float32:
    """eps as float32; InputError unless it is finite there and at least 0."""
    if not isinstance(eps, np.float32):
        with np.errstate(over="ignore"):
            eps = np.float32(real("eps", eps))
    if not (np.isfinite(eps) and eps >= 0):
        raise InputError(f"eps {eps} must be finite in float32 and at least 0")
    return eps


def whole_array(name: str, values) -> np.ndarray:
    """`values` as a flat integer array, or InputError for what is ragged, nested or no integer."""
    if values is None or isinstance(values, (str, bytes, dict, set)):
        raise InputError(f"{name} must be a flat list of integers, got {type(values).__name__}")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{name} must be a flat list of integers, got a ragged or oversized one") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(f"{name} must be a flat list of integers, got {array.dtype} {list(array.shape)}")
    return array


def listed(name: str, values) -> list:
    """A list, tuple, other sequence or flat array as a list, or InputError: text and a generator are none."""
    flat = isinstance(values, np.ndarray) and values.ndim == 1
    if not flat and (isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Sequence)):
        raise InputError(f"{name} must be a list, got {type(values).__name__}")
    return list(values)


def _short(value) -> str:
    """repr of a value, cut to fit a sentence."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        text = f"of {value.bit_length()} bits"
    return text if len(text) <= 60 else f"{text[:57]}..."
