"""Controls that break the contract by one change each: kernels/attention_diagnostics.cu and native twins."""

from collections.abc import Callable

from crucible.attention import reference
from crucible.attention.base import Problem, Variant
from crucible.attention.native import native

KINDS = {
    "split-sum": (1, "the output as four chains over keys j mod 4, then joined"),
    "contracted": (2, "the score's product fused into the softmax's subtraction"),
    "tf32": (3, "q, k, e and v rounded to TF32 before each product"),
    "hardware-exp": (4, "the GPU's fast exponential"),
}
CUDA_ONLY = ("hardware-exp",)


def attention_diagnostics(kind: int) -> Callable:
    """A launcher of kernels/attention_diagnostics.cu for one kind."""

    def launch(device, p: Problem) -> None:
        kernel = device.kernel("attention_diagnostics", DIAGNOSTIC=kind)
        kernel.launch((p.T, p.Hq), 256, reference.arguments(p), shared=4 * (p.capacity + p.D))

    return launch


def _variant(name: str) -> Variant:
    kind, summary = KINDS[name]
    launchers = {"cuda": attention_diagnostics(kind)}
    if name not in CUDA_ONLY:
        launchers["simt"] = launchers["cuda"]
        launchers["cpu"] = native("crucible_attention_diagnostics", kind)
    return Variant(summary, False, launchers, reference.covers)


VARIANTS = {name: _variant(name) for name in KINDS}
