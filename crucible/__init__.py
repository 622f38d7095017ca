"""Crucible: LLM inference with one set of bits on every device, batch, chunking and page map."""

__version__ = "0.1.0"

_LAZY = {"Model": "crucible.model.model", "generate": "crucible.model.generate"}


def __getattr__(name: str):
    # Lazy: `import crucible` must stay under 0.3 s, so numpy-heavy modules load on first use.
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'crucible' has no attribute {name!r}")
