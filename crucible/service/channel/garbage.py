"""Python's garbage collector in a process that serves: seldom, and never over what a load made."""

import gc

# Of a burst's requests each leaves some hundred objects: at Python's 700 every third one waited for a look
# at all of them. Most of what a request leaves goes without the collector.
_YOUNG = 20_000


def settle() -> None:
    """Call it once what stays is there: no later collection looks at it, and there are fewer of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
