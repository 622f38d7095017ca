"""The builds of the int8 layer's kernels on cuda and simt, what each needs, and the choice among them."""

import functools
from dataclasses import asdict, dataclass

import numpy as np

from crucible.errors import InputError, NoKernelError

INT32_K = 1 << 17  # the longest sum of digit * weight, at most 128 * 127 each, that int32 holds
_MOST_BLOCKS = 1 << 16  # blocks of a kernel that strides over its grid


@dataclass(frozen=True)
class Tile:
    """A build of kernels/linear_i8_tile.cu; the fields are its macros."""

    warps_m: int = 2
    warps_n: int = 2
    tile_m: int = 4
    tile_n: int = 8
    stages: int = 4
    min_blocks: int = 2

    stem = "linear_i8_tile"

    def launch(self, kernel, args, T: int, N: int, K: int) -> None:
        groups, panels = self.warps_m * self.tile_m, self.warps_n * self.tile_n
        grid = -(-T // (8 * groups)) * -(-N // (8 * panels))
        shared = self.stages * (1024 * groups + 512 * panels)
        kernel.launch(grid, 32 * self.warps_m * self.warps_n, args, shared=shared)


@dataclass(frozen=True)
class Rows:
    """A build of kernels/linear_i8_rows.cu; the fields are its macros."""

    groups: int = 1
    panels: int = 2
    warps: int = 4
    unroll: int = 4
    min_blocks: int = 0

    stem = "linear_i8_rows"

    def launch(self, kernel, args, T: int, N: int, K: int) -> None:
        grid = (-(-N // (8 * self.panels)), -(-T // (8 * self.groups)))
        kernel.launch(grid, 32 * self.warps, args)


@dataclass(frozen=True)
class Few:
    """A build of kernels/linear_i8_few.cu, which takes f32 rows; the fields are its macros."""

    panels: int = 1
    ahead: int = 4

    stem = "linear_i8_few"

    def launch(self, kernel, args, T: int, N: int, K: int) -> None:
        grid = (-(-N // (8 * self.panels)), -(-T // 8))
        kernel.launch(grid, 256, args, shared=few_shared(K))


def few_shared(K: int) -> int:
    """Bytes of dynamic shared memory of kernels/linear_i8_few.cu: the digits of 8 rows."""
    return 1024 * -(-K // 64)


@dataclass(frozen=True)
class Wgmma:
    """A build of kernels/linear_i8_wgmma.cu (sm_90a); the fields are its macros, but `waves`.

    waves: how many blocks a multiprocessor is given; 0 makes a block for every tile.
    """

    tile_n: int = 128
    warpgroups: int = 2
    stages: int = 6
    min_blocks: int = 2
    strip: int = 4
    waves: int = 0

    stem = "linear_i8_wgmma"

    def launch(self, kernel, args, T: int, N: int, K: int) -> None:
        tiles = -(-T // (32 * self.warpgroups)) * -(-N // self.tile_n)
        grid = min(tiles, self.waves * _multiprocessors()) if self.waves else tiles
        shared = self.stages * (4096 * self.warpgroups + 64 * self.tile_n)
        kernel.launch(grid, 128 * self.warpgroups + 32, args, shared=shared)


@functools.cache
def _multiprocessors() -> int:
    import cupy

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


KERNELS: dict[str, Tile | Rows | Few | Wgmma | None] = {
    "reference": None,
    "tile-64x128": Tile(),
    "tile-64x64": Tile(tile_n=4, min_blocks=3),
    "tile-32x128": Tile(warps_m=1, warps_n=4, tile_n=4, min_blocks=3),
    "tile-32x64": Tile(warps_m=1, warps_n=4, tile_n=2, stages=6, min_blocks=4),
    "wgmma-32x64": Wgmma(64, 1, 8, 4, strip=8),
    "wgmma-32x128": Wgmma(128, 1, 6, 3),
    "wgmma-64x64": Wgmma(64, 2, 8, 2, strip=8),
    "wgmma-64x128": Wgmma(128, 2, 6, 2, waves=2),
    "wgmma-64x128-s8": Wgmma(128, 2, 6, 2, strip=8, waves=2),
    "wgmma-64x128-s2": Wgmma(128, 2, 6, 2, strip=2, waves=2),
    "wgmma-64x128-all": Wgmma(128, 2, 6, 2),
    "wgmma-64x256": Wgmma(256, 2, 8, 1, waves=1),
    "wgmma-128x128": Wgmma(128, 4, 6, 1, waves=1),
    "rows-8x8": Rows(1, 1, 8, min_blocks=1),
    "rows-8x16": Rows(1, 2, 4, min_blocks=1),
    "rows-8x32": Rows(1, 4, 4),
    "rows-8x32-m1": Rows(1, 4, 4, min_blocks=1),
    "rows-8x32-w2": Rows(1, 4, 2, 6, min_blocks=1),
    "rows-16x8": Rows(2, 1, 8, min_blocks=1),
    "rows-16x16": Rows(2, 2, 4, min_blocks=1),
    "rows-16x32": Rows(2, 4, 4),
    "rows-16x32-m1": Rows(2, 4, 4, min_blocks=1),
    "few-8": Few(1, 4),
    "few-16": Few(2, 2),
    "few-32": Few(4, 2),
    "few-64": Few(8, 1),
}


def choose(device, T: int, N: int, K: int, floats: bool = False) -> str:
    """The name of the kernel for a layer of T rows, by what was measured (kernels/linear_i8.md).

    `floats`: the rows are f32 still, so that a kernel which quantizes them itself may be named.
    """
    if K > INT32_K:
        return "reference"
    if floats and T == 1 and N < 8192 and few_shared(K) <= device.shared_limit >> 1:
        return "few-16" if N < 2048 else "few-32"
    if T <= 16:
        rows = 8 if T <= 8 else 16
        return f"rows-{rows}x{8 if N < 2048 else 16 if N < 8192 else 32}"
    tiles = [-(-T // height) * -(-N // width) for height, width in ((32, 64), (32, 128), (64, 128))]
    if runs(device, "wgmma-32x64"):
        if tiles[0] <= 400:
            return "wgmma-32x64"
        if tiles[1] <= 400:
            return "wgmma-32x128"
        return "wgmma-64x128" if tiles[2] <= 1024 else "wgmma-128x128"
    return "tile-32x64" if tiles[0] <= 400 else "tile-32x128" if tiles[1] <= 400 else "tile-64x128"


def launch(device, q, top, weight, add, out, name: str | None = None) -> None:
    """Run one of KERNELS, by default the chosen one, on quantized rows."""
    T, N, K = q.rows, weight.n, weight.k
    name = name or choose(device, T, N, K)
    build = _build(device, name, K)
    if T == 0:
        return
    if isinstance(build, Few):
        raise InputError(f"kernel {name} takes f32 rows; call linear_int8")
    if build is None:
        return _reference(device, q, top, weight, add, out, None)
    ends = (weight.scale, weight.bias, add, out)
    args = (q.digits, top, weight.packed, *ends, *map(np.int32, (T, N, K)), _pairs(N, ends))
    build.launch(device.kernel(build.stem, **macros(build)), args, T, N, K)


def launch_few(device, x, weight, add, out, name: str, source: int = 0, norm=None, eps=0.0) -> None:
    """Run a Few of KERNELS on what its SOURCE makes of x: x itself, its rmsnorm, or its SwiGLU."""
    T, N, K = x.shape[0], weight.n, weight.k
    build = _build(device, name, K)
    if T == 0:
        return
    ends = (weight.scale, weight.bias, add, out)
    args = (x, norm, np.float32(eps), weight.packed, *ends, *map(np.int32, (T, N, K)), _pairs(N, ends))
    kernel = device.kernel(build.stem, SOURCE=source, WHOLE=whole(K, x, norm), **macros(build))
    build.launch(kernel, args, T, N, K)


def whole(K: int, *floats) -> int:
    """Macro WHOLE of kernels/quantize_rows.cuh: whether rows of K floats can be read four at a time."""
    return int(K % 4 == 0 and all(a is None or _address(a) % 16 == 0 for a in floats))


def is_few(name: str) -> bool:
    return isinstance(KERNELS.get(name), Few)


def _build(device, name: str, K: int):
    if name not in KERNELS:
        raise InputError(f"int8 kernel {name!r} is unknown; choose one of {', '.join(KERNELS)}")
    if not runs(device, name):
        raise NoKernelError(f"int8 kernel {name}", device.name)
    if KERNELS[name] is not None and K > INT32_K:
        raise InputError(f"kernel {name} sums in int32, exact up to K = {INT32_K}, not {K}; use reference")
    return KERNELS[name]


def _pairs(N: int, ends) -> np.int32:
    """Whether the ends of a layer can be read and written two at a time."""
    return np.int32(N % 2 == 0 and all(a is None or _address(a) % 8 == 0 for a in ends))


@functools.cache
def macros(build) -> dict[str, int]:
    """The -D macros of a build; not to be changed, for it is kept."""
    return {name.upper(): value for name, value in asdict(build).items() if name != "waves"}


def runs(device, name: str) -> bool:
    """Whether the device has what a kernel needs: linear_i8_wgmma.cu is for Hopper alone."""
    return not isinstance(KERNELS[name], Wgmma) or getattr(device, "arch", None) == "sm_90a"


def sums(device, q, weight, out) -> None:
    """The integers T int64 [T][N] alone."""
    if out.size:
        _reference(device, q, None, weight, None, None, out)


def _reference(device, q, top, weight, add, out, integers) -> None:
    blocks = min(-(-q.rows * weight.n // 256), _MOST_BLOCKS)
    arrays = (q.digits, top, weight.packed, weight.scale, weight.bias, add, out, integers)
    extents = map(np.int32, (q.rows, weight.n, weight.k))
    device.kernel("linear_i8_reference").launch(blocks, 256, (*arrays, *extents))


def _address(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
