"""A launch that CuPy cannot express: cuLaunchKernelEx of the CUDA driver, with an attribute."""

import ctypes
import functools

import numpy as np

from crucible.errors import CrucibleError

EARLY_ARCH = 90  # first architecture that starts a launch before the one before it is done
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


class _Attribute(ctypes.Structure):  # CUlaunchAttribute: the value is a union of 64 bytes
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@functools.cache
def _launch_ex():
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    return function


def launch_early(function: int, grid, block, args, shared: int) -> None:
    """Enqueue on CuPy's current stream a kernel that may start while the launch before it still runs.

    `function` is a CUfunction, `args` CuPy arrays, NumPy scalars and None (a null pointer), already checked
    against the kernel's parameters. CrucibleError if the driver refuses the launch.
    """
    import cupy

    held = [_argument(arg) for arg in args]
    pointers = (ctypes.c_void_p * max(len(held), 1))(*(ctypes.addressof(x) for x in held))
    attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    stream = cupy.cuda.get_current_stream().ptr
    config = _Config(
        (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared, stream, ctypes.pointer(attribute), 1
    )
    code = _launch_ex()(ctypes.byref(config), function, pointers, None)
    if code:
        raise CrucibleError(f"the CUDA driver refused an early launch with error {code}")


def _argument(arg):
    if isinstance(arg, np.generic):
        return ctypes.create_string_buffer(arg.tobytes(), arg.nbytes)
    return ctypes.c_void_p(None if arg is None else arg.data.ptr)
