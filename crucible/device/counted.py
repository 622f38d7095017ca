"""A device that counts the launches of each kernel."""

from collections import Counter


class Counted:
    """`device`, with the number of launches of every kernel (its entry's name) in `launches`."""

    def __init__(self, device):
        self._device, self.launches = device, Counter()

    def __getattr__(self, name):
        return getattr(self._device, name)

    def kernel(self, stem, entry=None, **defines):
        """As the device's own; its launches are counted."""
        return _Kernel(self._device.kernel(stem, entry, **defines), self.launches)


class _Kernel:
    def __init__(self, kernel, launches: Counter):
        self._kernel, self._launches = kernel, launches

    def __getattr__(self, name):
        return getattr(self._kernel, name)

    def launch(self, *arguments, **options) -> None:
        self._kernel.launch(*arguments, **options)
        self._launches[self._kernel.entry] += 1
