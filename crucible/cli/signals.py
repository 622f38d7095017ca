"""Signals that end a command."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def term_is_interrupt() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does: a service that it started is not left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
