"""What Crucible reads out of a CUBIN, which is an ELF file: its entries and their parameter sizes."""

import struct

_KPARAM_INFO = 0x17  # attribute of .nv.info.<entry>: one record per parameter


def sections(image: bytes) -> dict[str, bytes]:
    """Content of every section of a 64-bit little-endian ELF image by name; empty where it holds no bytes."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF image")
    offset, size, count, names = struct.unpack_from("<40xQ10xHHH", image, 0)
    headers = [struct.unpack_from("<II8x8xQQ", image, offset + i * size) for i in range(count)]
    text = image[headers[names][2] : headers[names][2] + headers[names][3]]
    no_bits = 8
    return {
        text[name : text.index(b"\0", name)].decode(): b"" if kind == no_bits else image[at : at + length]
        for name, kind, at, length in headers
    }


def parameter_sizes(image: bytes) -> dict[str, tuple[int, ...]]:
    """Sizes in bytes of the parameters of each entry, in order."""
    prefix, entries = ".nv.info.", {}
    for name, body in sections(image).items():
        if name.startswith(prefix):
            sizes = dict(_parameters(body))
            entries[name.removeprefix(prefix)] = tuple(sizes[i] for i in sorted(sizes))
    return entries


def _parameters(body: bytes):
    at, with_payload = 0, 4
    while at + 4 <= len(body):
        form, attribute, length = struct.unpack_from("<BBH", body, at)
        at += 4
        if form != with_payload:
            continue
        if attribute == _KPARAM_INFO:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", body, at)
            yield ordinal, packed >> 18
        at += length
