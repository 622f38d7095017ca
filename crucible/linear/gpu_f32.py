"""The f32 linear layer on cuda and simt (contract section 6): packing, and the launchers of its kernels."""

import functools
from dataclasses import asdict, dataclass

import numpy as np

from crucible.errors import InputError

STORAGE_CODE = {"f32": 0, "bf16": 1}  # macro STORAGE of kernels/linear.cuh
_SOURCES = {"f32": 0, "bf16": 1, "q8_0": 2, "q4_1": 3}  # macro SOURCE of kernels/linear_pack.cu
_DTYPE = {"f32": np.float32, "bf16": np.uint16}
_SIZE = {"f32": 4, "bf16": 2}  # bytes of a packed weight
_PANEL = 8
_BLOCK = 256
_MOST_BLOCKS = 1 << 16  # blocks of the kernels that stride over their grid
_STEP = 16  # k of a stage of kernels/linear_tile.cu
_MOST_RINGS = 160 << 10  # bytes of the rings of a block of kernels/linear_rows.cu
_RESERVED = 1024  # bytes of shared memory that the driver takes from each block
_OF_SIMT = 6, 228 << 10  # a small machine, so that blocks take several tiles there too


@dataclass(frozen=True)
class Tile:
    """A build of kernels/linear_tile.cu; the fields are its macros."""

    thread_n: int = 8
    warps_m: int = 4
    warps_n: int = 2
    stages: int = 2
    split: int = 0
    min_blocks: int = 2
    early: int = 0
    turn: int = 1

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and outputs of a block."""
        return 32 * self.warps_m, 8 * self.thread_n * self.warps_n

    def shared(self, k: int, storage: str) -> int:
        """Dynamic shared memory in bytes."""
        rows, outputs = self.extent
        parked = 0 if self.split or k <= _BLOCK else 4 * rows * outputs
        return self.stages * _STEP * (4 * rows + _SIZE[storage] * outputs) + parked


@dataclass(frozen=True)
class Rows:
    """A build of kernels/linear_rows.cu; the fields are its macros, and the most warps of a block."""

    thread_m: int = 1
    row_lanes: int = 1
    block_lanes: int = 4
    thread_n: int = 1
    step: int = 32
    stages: int = 4
    warps: int = 8

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and outputs of a block."""
        lanes = 32 // (self.row_lanes * self.block_lanes)
        return self.thread_m * self.row_lanes, lanes * self.thread_n

    def ring(self, storage: str) -> int:
        """Bytes of a warp's ring."""
        rows, outputs = self.extent
        apart = self.block_lanes > 1
        row = outputs * _SIZE[storage] // 4
        return 4 * self.stages * self.block_lanes * ((self.step + apart) * row + self.step * rows + 4 * apart)

    def block_warps(self, k: int, storage: str) -> int:
        """Warps of a block: at most one for each group of K blocks, and no more than their rings allow."""
        groups = -(-_blocks(k) // self.block_lanes)
        return max(1, min(self.warps, groups, _MOST_RINGS // self.ring(storage)))

    def shared(self, k: int, storage: str) -> int:
        """Dynamic shared memory in bytes."""
        rows, outputs = self.extent
        return self.block_warps(k, storage) * self.ring(storage) + 8 * _blocks(k) * rows * outputs


def pack_rows(device, rows, storage: str, n: int, k: int) -> tuple[object, str]:
    """rows uint8 [N][bytes] in a storage of weights.STORAGES -> (packed, its storage: f32 or bf16).

    packed f32 or uint16 [ceil(N/8)][K][8]: a panel of 8 outputs is one run over K. Quantized
    storages widen to f32, with the roundings of contract section 7.
    """
    kept = storage if storage in STORAGE_CODE else "f32"
    packed = device.empty((-(-n // _PANEL), k, _PANEL), _DTYPE[kept])
    kernel = device.kernel("linear_pack", SOURCE=_SOURCES[storage], STORAGE=STORAGE_CODE[kept])
    sizes = (np.int32(n), np.int32(k), np.int64(rows.shape[1]))
    kernel.launch(min(-(-packed.size // 256), _MOST_BLOCKS), 256, (rows, packed, *sizes))
    return packed, kept


def linear_f32(device, x, weight, out, scratch=None, add=None, kernel: str | None = None) -> None:
    """x f32 [T][K] through an f32 layer into out f32 [T][N]; with `add`, out = add + y.

    `kernel` names one of KERNELS; by default the fastest measured near this shape runs.
    """
    from crucible.linear.gpu_choice import KERNELS, choose

    if x.shape[0] == 0:
        return
    if kernel is not None and kernel not in KERNELS:
        raise InputError(f"linear kernel {kernel!r} is unknown; choose one of {', '.join(KERNELS)}")
    build = KERNELS[kernel or choose(device, x.shape[0], weight)]
    launch(device, build, x, weight, out, scratch, add)


def launch(device, build: Tile | Rows | None, x, weight, out, scratch=None, add=None) -> None:
    """Run one build of the kernels; None is the reference, a thread an output."""
    if build is None:
        _reference(device, x, weight, out, add)
    elif isinstance(build, Tile):
        _tile(device, build, x, weight, out, scratch, add)
    else:
        _rows(device, build, x, weight, out, add)


def source(build: Tile | Rows | None, storage: str, ragged: int = 0) -> tuple[str, dict[str, int]]:
    """Stem and macros of the kernel that a build launches."""
    macros = {"STORAGE": STORAGE_CODE[storage]}
    if build is None:
        return "linear_reference", macros
    macros |= {name.upper(): value for name, value in asdict(build).items() if name != "warps"}
    macros["RAGGED"] = ragged
    return "linear_rows" if isinstance(build, Rows) else "linear_tile", macros


@functools.lru_cache(maxsize=1024)
def _kernel(device, build: Tile | Rows | None, storage: str, ragged: int):
    stem, macros = source(build, storage, ragged)
    return device.kernel(stem, **macros)


def _reference(device, x, weight, out, add) -> None:
    blocks = min(-(-x.shape[0] * weight.n // 256), _MOST_BLOCKS)
    arrays = (x, weight.packed, weight.bias, add, out)
    kernel = _kernel(device, None, weight.storage, 0)
    kernel.launch(blocks, 256, (*arrays, *_extents(x, weight)))


def _tile(device, build: Tile, x, weight, out, scratch, add) -> None:
    T, N, K = x.shape[0], weight.n, weight.k
    rows, outputs = build.extent
    ragged = int(K % _STEP != 0 or _address(x) % 16 != 0)
    kernel = _kernel(device, build, weight.storage, ragged)
    wide = int(N % 4 == 0 and all(a is None or _address(a) % 16 == 0 for a in (weight.bias, add, out)))
    grid = (-(-T // rows), -(-N // outputs), _blocks(K) if build.split else 1)
    y = out
    if build.split:
        shape = (grid[2], T, -(-N // 4) * 4)
        y = device.empty(shape) if scratch is None else scratch.take("linear_partials", shape)
    kernel.launch(
        grid,
        32 * build.warps_m * build.warps_n,
        (x, weight.packed, weight.bias, add, y, *_extents(x, weight), np.int32(wide)),
        shared=build.shared(K, weight.storage),
    )
    if build.split:
        args = (y, weight.bias, add, out, np.int32(T), np.int32(N), np.int32(grid[2]), np.int32(wide))
        blocks = min(-(-T * -(-N // 4) // 256), _MOST_BLOCKS)
        device.kernel("linear_fold").launch(blocks, 256, args)


def _rows(device, build: Rows, x, weight, out, add) -> None:
    T, N, K = x.shape[0], weight.n, weight.k
    rows, outputs = build.extent
    ragged = int(K % build.step != 0 or _address(x) % 16 != 0)
    kernel = _kernel(device, build, weight.storage, ragged)
    warps, shared = build.block_warps(K, weight.storage), build.shared(K, weight.storage)
    tiles, row_groups = -(-N // outputs), -(-T // rows)
    most = max(1, _resident(device, kernel, 32 * warps, shared) // row_groups)
    grid = -(-tiles // -(-tiles // most))  # every block takes nearly the same number of tiles
    args = (x, weight.packed, weight.bias, add, out, *_extents(x, weight))
    kernel.launch((grid, row_groups), 32 * warps, args, shared=shared)


def _resident(device, kernel, threads: int, shared: int) -> int:
    """Blocks of a kernel that the device holds at once."""
    count, shared_of_one = _multiprocessors(device)
    fits = min(32, 2048 // threads, shared_of_one // (shared + _RESERVED))
    if device.name == "cuda":
        fits = min(fits, 65536 // (-(-kernel.resources.registers // 8) * 8 * threads))
    return count * max(1, fits)


@functools.cache
def _multiprocessors(device) -> tuple[int, int]:
    """Multiprocessors of a device and the bytes of shared memory of each."""
    if device.name != "cuda":
        return _OF_SIMT
    import cupy

    at = cupy.cuda.Device().attributes
    return int(at["MultiProcessorCount"]), int(at["MaxSharedMemoryPerMultiprocessor"])


def _blocks(k: int) -> int:
    return -(-k // _BLOCK)


def _extents(x, weight) -> tuple[np.int32, np.int32, np.int32]:
    return np.int32(x.shape[0]), np.int32(weight.n), np.int32(weight.k)


def _address(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
