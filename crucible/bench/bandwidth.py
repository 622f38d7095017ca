"""Copy bandwidth of the current GPU: the yardstick of whatever only has to read memory."""

from crucible.bench.attention_timers import Cupy

BYTES = 1 << 30  # of the copied array, far beyond any cache
COPIES = 10  # a sample


def copies(timer: Cupy, rounds: int) -> tuple[float, ...]:
    """GB/s of device-to-device copies, one sample a round; a byte copied counts twice, read and written."""
    import cupy

    with timer.stream:
        source, target = (cupy.zeros(BYTES // 4, cupy.float32) for _ in range(2))

    def work():
        for _ in range(COPIES):
            target.data.copy_from_device_async(source.data, BYTES)

    taken = [timer.microseconds(work) for _ in range(rounds + 1)][1:]  # the first is thrown away
    return tuple(2e-3 * BYTES * COPIES / us for us in taken)
