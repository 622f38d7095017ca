"""Attention on the cpu device: calls into kernels/cpu."""

from collections.abc import Callable

from crucible.attention.base import Problem, Variant


def native(function: str, *more: int) -> Callable:
    """A launcher of C function `function`; `more` are its last arguments."""

    def launch(device, p: Problem) -> None:
        device.call(
            function,
            *(p.q, p.kpool, p.vpool, p.tables, p.tables.shape[1], p.desc, p.S),
            *(p.layer, p.layers, p.Hq, p.Hkv, p.D, p.out, *more),
        )

    return launch


VARIANTS = {
    "exact": Variant(
        "tiled for speed, the same bits; on simt and cuda: exact-q4-k64",
        True,
        {"cpu": native("crucible_attention_tiled")},
    )
}
