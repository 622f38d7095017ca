"""The digest of a tensor (contract section 9): blake2b over its little-endian f32 bytes in C order."""

import hashlib

import numpy as np

from crucible.errors import InputError


def digest(array) -> str:
    """32 hex characters that stand for the bits of an f32 array; its shape is not part of the digest."""
    array = np.asarray(array)
    if array.dtype != np.float32:
        raise InputError(f"digest of dtype {array.dtype} is not defined; pass float32")
    return hashlib.blake2b(np.ascontiguousarray(array).astype("<f4", copy=False), digest_size=16).hexdigest()
