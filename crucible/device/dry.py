"""A device that launches nothing: it lists the kernels that a piece of work would have run."""


class Dry:
    """`device` without its kernels; `sources` holds (stem, macros) of every kernel asked for, once each."""

    def __init__(self, device):
        self._device, self._found = device, {}

    def __getattr__(self, name):
        return getattr(self._device, name)

    @property
    def sources(self) -> list[tuple[str, dict[str, int]]]:
        return list(self._found.values())

    def kernel(self, stem, entry=None, **defines):
        """Notes the kernel; what is returned can be launched and does nothing."""
        self._found.setdefault((stem, tuple(sorted(defines.items()))), (stem, defines))
        return self

    def launch(self, grid, block, args, shared=0, early=False) -> None:
        """Nothing."""
