"""Device `cuda`: CuPy arrays, CUBINs of our own making, launches on CuPy's current stream."""

import contextlib
from pathlib import Path

import numpy as np

from crucible.device import launch, nvrtc
from crucible.device.base import Device
from crucible.errors import InputError, UnavailableError

_DEFAULT_SHARED = 48 * 1024  # above this a kernel must opt in


class Kernel:
    """One loaded kernel; `resources` is what ptxas reported, `parameters` what launch() takes."""

    def __init__(self, entry: str, cubin: nvrtc.Cubin, function, shared_limit: int):
        self.entry, self.path, self._function = entry, cubin.path, function
        self.resources = cubin.resources[entry]
        self.parameters = tuple(launch.Parameter("?", size) for size in cubin.parameter_sizes[entry])
        self.shared_limit = shared_limit - self.resources.static_shared
        self._opted_in = _DEFAULT_SHARED - self.resources.static_shared

    def launch(self, grid, block, args, shared: int = 0) -> None:
        """Enqueue on the current stream, also inside a graph capture; shapes and checks as on simt.

        `args` are C-contiguous CuPy arrays or NumPy scalars. Does not wait: a fault of the kernel
        shows at the next synchronisation.
        """
        grid, block = launch.extent(grid, "grid"), launch.extent(block, "block")
        launch.check_shared(self.entry, shared, self.shared_limit)
        launch.check_arguments(self.entry, self.parameters, args, _is_array)
        if shared > self._opted_in:
            self._function.max_dynamic_shared_size_bytes = self._opted_in = shared
        self._function(grid, block, tuple(args), shared_mem=shared)


class CudaDevice(Device):
    """The current CUDA device of this process."""

    name = "cuda"

    def __init__(self):
        import cupy

        self._cupy = cupy
        device = cupy.cuda.Device()
        # Compute capability 9.0 has tensor products (wgmma) that only its own target compiles.
        self.arch = {"90": "sm_90a"}.get(device.compute_capability, f"sm_{device.compute_capability}")
        self.shared_limit = int(device.attributes["MaxSharedMemoryPerBlockOptin"])
        self._kernels: dict[tuple, Kernel] = {}
        self._modules: dict[Path, object] = {}
        self._capturing = None

    def empty(self, shape, dtype=np.float32):
        return self._cupy.empty(shape, dtype)

    def zeros(self, shape, dtype=np.float32):
        return self._cupy.zeros(shape, dtype)

    def upload(self, array):
        """C-contiguous CuPy array; a CUDA torch tensor is taken over without a copy (DLPack)."""
        if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
            array = self._cupy.from_dlpack(array)
        return self._cupy.ascontiguousarray(self._cupy.asarray(array))

    def download(self, array) -> np.ndarray:
        return self._cupy.asnumpy(array)

    def synchronize(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def host_empty(self, nbytes: int) -> np.ndarray:
        """Page-locked host bytes."""
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def copy_in(self, target, source: np.ndarray) -> None:
        self._copy(target.data.ptr, source.ctypes.data, source.nbytes, target.nbytes)

    def copy_out(self, target: np.ndarray, source) -> None:
        self._copy(target.ctypes.data, source.data.ptr, source.nbytes, target.nbytes)

    def _copy(self, target: int, source: int, nbytes: int, room: int) -> None:
        if nbytes != room:
            raise InputError(f"a copy of {nbytes} bytes needs a target of as many, not of {room}")
        runtime, stream = self._cupy.cuda.runtime, self._cupy.cuda.get_current_stream()
        runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDefault, stream.ptr)

    def event(self) -> "Event":
        return Event(self._cupy)

    def capture(self, run) -> "CudaGraph":
        """The launches of `run()` as a CUDA graph; none of them runs now."""
        stream = self._capturing = self._capturing or self._cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                run()
            except BaseException:
                with contextlib.suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                    stream.end_capture()  # the graph is lost, the stream comes back
                raise
            graph = stream.end_capture()
        return CudaGraph(self._cupy, graph)

    def kernel(self, stem: str | Path, entry: str | None = None, **defines) -> Kernel:
        """The kernel `entry` (default: the file's stem) of kernels/<stem>.cu, or of the .cu file at a path.

        `defines` become -D macros; the entry must be extern "C". Raises InputError when there is no
        such file or entry and UnavailableError when it does not compile.
        """
        memo = (str(stem), entry, tuple(sorted(defines.items())))
        if memo not in self._kernels or str(stem).endswith(".cu"):  # a file outside may change any time
            cubin = nvrtc.compile_cubin(stem, self.arch, defines)
            name = entry or Path(stem).stem
            if name not in cubin.parameter_sizes:
                known = ", ".join(sorted(cubin.parameter_sizes))
                raise InputError(f'{stem} has no extern "C" __global__ function {name!r}; it has {known}')
            if cubin.path not in self._modules:
                self._modules[cubin.path] = self._cupy.RawModule(path=str(cubin.path))
            function = self._modules[cubin.path].get_function(name)
            self._kernels[memo] = Kernel(name, cubin, function, self.shared_limit)
        return self._kernels[memo]


class Event:
    """An event on the stream that was current when it was made."""

    def __init__(self, cupy):
        self._event = cupy.cuda.Event(block=False, disable_timing=True)
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()


class CudaGraph:
    """A captured CUDA graph, launched on whichever stream is current."""

    def __init__(self, cupy, graph):
        self._cupy, self._graph = cupy, graph

    def launch(self) -> None:
        self._graph.launch(self._cupy.cuda.get_current_stream())


def create() -> CudaDevice:
    """The cuda device; UnavailableError, in one sentence, on a machine without CuPy or a usable GPU."""
    try:
        import cupy
    except ImportError:
        raise UnavailableError("device cuda needs CuPy; install cupy-cuda13x or use --device cpu") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnavailableError(f"no usable CUDA GPU on this machine ({error}); use --device cpu") from None
    if count == 0:
        raise UnavailableError("no CUDA GPU on this machine; use --device cpu")
    return CudaDevice()


def _is_array(x) -> bool:
    import cupy

    return isinstance(x, cupy.ndarray)
