"""Launch GPU kernels: machine code into the driver, arguments packed, on torch's stream."""

from __future__ import annotations

import atexit
import ctypes
import functools
import struct
import threading
import warnings
from collections.abc import Callable, Sequence

import torch
from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined]  # no stub

from tofuse.errors import CompileError
from tofuse.ir.dims import Dim, evaluate, hint, symbols_of
from tofuse.ir.tile import Binary, TileNest, TileProgram
from tofuse.ir.types import DType
from tofuse.ops.reference import TO_TORCH

Make = Callable[[int, "tuple[bool, ...]"], Binary]  # a launch's code, for arguments so divisible
Empty = Callable[..., torch.Tensor]
NO_CONTEXT = 201
SHARED = 48 * 1024  # bytes a program may have without being asked
EXTRA = (1, 2)  # CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE
ALIGNMENT = 256
PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: for all GPUs


class CudaLauncher:
    """A program, to be called with the addresses of its buffers, then its size symbols."""

    def __init__(
        self,
        program: TileProgram,
        parameters: Sequence[Sequence[tuple[str, str]]],
        make: Make,
        device: int,
    ) -> None:
        self.name, self.device = program.kernel.name, device
        kernel = program.kernel
        self.words = {
            n: k for k, n in enumerate((*(b.name for b in kernel.buffers), *kernel.symbols))
        }
        self.symbols, self.first_symbol = kernel.symbols, len(kernel.buffers)
        self.kinds = {b.name: b.dtype for b in kernel.buffers}
        self.spaces: list[tuple[str, Dim]] = [
            (w.name, w.elements * w.dtype.itemsize) for w in program.workspaces
        ]
        number = _number(self.name)
        self.launches = [
            _Launch(self, k, nest, names, make, number)
            for k, (nest, names) in enumerate(zip(program.nests, parameters, strict=True))
        ]
        self.plain = len(self.launches) == 1 and self.launches[0].plain
        self.static = not any(symbols_of(n) for _, n in self.spaces)
        self.offsets, self.total = self._place({})

    def __call__(self, *words: int) -> None:
        """Launch; raises IndexError where an earlier launch met an index out of range."""
        if _flag.value:
            _report()
        if get_device() != self.device:
            with torch.cuda.device(self.device):
                return self(*words)
        stream = get_stream(self.device)
        if self.plain:
            return self.launches[0].go(words, words, stream)
        sizes = dict(zip(self.symbols, words[self.first_symbol :], strict=True))
        offsets, total = (self.offsets, self.total) if self.static else self._place(sizes)
        space: torch.Tensor | None = None
        base = 0
        if total:
            space = _empty_strided_cuda((total,), (1,), torch.uint8)
            base = space.data_ptr()
        for launch in self.launches:
            launch.go(launch.pack(words, base, offsets), words, stream)
        return None

    def _place(self, sizes: dict[str, int]) -> tuple[dict[str, int], int]:
        """Where each workspace begins, and the bytes of all."""
        offsets, total = {}, 0
        for name, nbytes in self.spaces:
            offsets[name] = total
            size = evaluate(nbytes, sizes) if sizes else hint(nbytes)
            total += -(-size // ALIGNMENT) * ALIGNMENT
        return offsets, total


class _Launch:
    """One launch of a program, with the machine code for each alignment of its arguments."""

    def __init__(
        self,
        owner: CudaLauncher,
        number: int,
        nest: TileNest,
        parameters: Sequence[tuple[str, str]],
        make: Make,
        error: int,
    ) -> None:
        self.owner, self.number, self.nest, self.make = owner, number, nest, make
        self.names = [name for name, _ in parameters[:-2]]
        given = {*owner.words, *(n for n, _ in owner.spaces)}
        count = len(self.names)
        self.fill = struct.Struct(f"<{count}Q").pack_into
        # the flag and the number to leave there, and Triton's two scratch pointers
        self.buffer = (ctypes.c_uint64 * (count + 4))()
        self.buffer[count : count + 2] = [ctypes.addressof(_flag_word()), error]
        self.size = ctypes.c_size_t(8 * (count + 4))
        self.extra = _Extra(
            EXTRA[0], ctypes.addressof(self.buffer), EXTRA[1], ctypes.addressof(self.size), 0
        )
        self.lock = threading.Lock()  # around the one buffer that arguments are packed into
        self.plain = self.names == list(owner.words)
        self.known: dict[tuple[bool, ...], tuple[int, int, int]] = {}
        # a number of the host is whatever it is, and no multiple of 16
        self.checked = [k for k, n in enumerate(self.names) if n in given]
        self.best = self.function(tuple(k in self.checked for k in range(len(self.names))))
        static = not any(symbols_of(a.extent) for a in nest.kernel.axes)
        self.programs: int | None = nest.programs({}) if static else None

    def function(self, divisible: tuple[bool, ...]) -> tuple[int, int, int]:
        """Handle, threads and shared bytes of the code for such arguments."""
        if divisible not in self.known:
            binary = self.make(self.number, (*divisible, True, False))
            with torch.cuda.device(self.owner.device):
                handle = _load(binary)
            self.known[divisible] = (handle, binary.threads, binary.shared)
        return self.known[divisible]

    def pack(self, words: tuple[int, ...], base: int, offsets: dict[str, int]) -> tuple[int, ...]:
        """The arguments of this launch out of the program's."""
        packed = []
        for name in self.names:
            if name in offsets:
                packed.append(base + offsets[name])
            elif name in self.owner.words:
                packed.append(words[self.owner.words[name]])
            else:
                buffer, _, k = name.rpartition("_")
                address = words[self.owner.words[buffer]]
                packed.append(_host_number(address, int(k), self.owner.kinds[buffer]))
        return tuple(packed)

    def go(self, packed: tuple[int, ...], words: tuple[int, ...], stream: int) -> None:
        programs = self.programs
        if programs is None:
            owner = self.owner
            programs = self.nest.programs(
                dict(zip(owner.symbols, words[owner.first_symbol :], strict=True))
            )
        if programs == 0:
            return
        united = 0
        for k in self.checked:
            united |= packed[k]
        found = self.best
        if united & 15:
            pairs = enumerate(packed)
            found = self.function(tuple(k in self.checked and w & 15 == 0 for k, w in pairs))
        handle, threads, shared = found
        with self.lock:
            self.fill(self.buffer, 0, *packed)
            arguments = (handle, programs, 1, 1, threads, 1, 1, shared, stream, None, self.extra)
            status = _driver.launch(*arguments)
            if status == NO_CONTEXT:  # a thread in which torch has not yet called CUDA
                torch.cuda.synchronize(self.owner.device)
                status = _driver.launch(*arguments)
        if status:
            raise RuntimeError(f"CUDA error {status}: {_message(status)}, in {self.owner.name}")


_Extra = ctypes.c_void_p * 5


def empty_on(device: str) -> Empty:
    """`empty(shape, strides, dtype)` on a device."""
    place, index = torch.device(device), device_index(device)

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if get_device() == index:
            made: torch.Tensor = _empty_strided_cuda(shape, strides, dtype)
            return made
        return torch.empty_strided(shape, strides, dtype=dtype, device=place)

    return empty


def device_index(device: str) -> int:
    """The number of a GPU."""
    return torch.device(device).index or 0


def capability(device: str) -> tuple[int, int]:
    """Compute capability, such as 90, and multiprocessors of a GPU; of an H200 without one."""
    if not torch.cuda.is_available():
        return 90, 132
    found = torch.cuda.get_device_properties(torch.device(device))
    return 10 * found.major + found.minor, found.multi_processor_count


class _Driver:
    """NVIDIA's driver library, opened when first needed."""

    @functools.cached_property
    def library(self) -> ctypes.CDLL:
        return ctypes.CDLL("libcuda.so.1")

    @functools.cached_property
    def launch(self) -> Callable[..., int]:
        function = self.library.cuLaunchKernel
        pointer = ctypes.c_void_p
        function.argtypes = [pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer]
        return function


_driver = _Driver()


def _load(binary: Binary) -> int:
    """The function of a binary in the current context; CompileError where the driver refuses."""
    driver = _driver.library
    torch.cuda.synchronize()  # makes the context, where there is none yet
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    status = driver.cuModuleLoadData(ctypes.byref(module), binary.code)
    if not status:
        status = driver.cuModuleGetFunction(ctypes.byref(function), module, binary.name.encode())
    if not status and binary.shared > SHARED:
        status = driver.cuFuncSetAttribute(function, 8, binary.shared)
    if status or function.value is None:
        raise CompileError(f"CUDA error {status}: {_message(status)}")
    return function.value


def _message(status: int) -> str:
    text = ctypes.c_char_p()
    _driver.library.cuGetErrorString(status, ctypes.byref(text))
    return (text.value or b"unknown").decode()


def _host_number(address: int, k: int, dtype: DType) -> int:
    """The 8 bytes that a number in the CPU's memory is passed as."""
    raw = ctypes.string_at(address + k * dtype.itemsize, dtype.itemsize)
    match dtype:
        case DType.BF16:
            value: float | int = struct.unpack("<f", b"\0\0" + raw)[0]
        case DType.F8E4M3 | DType.F8E5M2:
            value = torch.frombuffer(bytearray(raw), dtype=TO_TORCH[dtype]).item()
        case _:
            value = struct.unpack(_FORMATS[dtype], raw)[0]
    packed = struct.pack("<d", value) if dtype.is_float else struct.pack("<q", value)
    return int.from_bytes(packed, "little")


# -- indices out of range -------------------------------------------------------------------------


def _flag_word() -> ctypes.c_int32:
    """A word of pinned memory, where kernels that meet a bad index leave their number."""
    global _flag
    if ctypes.addressof(_flag) == _NOWHERE:
        torch.cuda.synchronize()  # makes the context, where there is none yet
        place = ctypes.c_void_p()
        status = _driver.library.cuMemHostAlloc(ctypes.byref(place), ctypes.c_size_t(64), PORTABLE)
        if status or place.value is None:
            raise CompileError(f"CUDA error {status}: {_message(status)}")
        ctypes.memset(place, 0, 64)
        atexit.register(_last_report)
        _flag = ctypes.c_int32.from_address(place.value)
    return _flag


def _number(name: str) -> int:
    _names.append(name)
    return len(_names)


def synchronize() -> None:
    """Wait for the GPU, if one is used at all; raises IndexError like a launch."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if _flag.value:
        _report()


def _report() -> None:
    raise IndexError(_bad_index())


def _last_report() -> None:
    """At the end of the process there is no caller left to raise anything to."""
    if _flag.value:
        warnings.warn(_bad_index(), RuntimeWarning, stacklevel=2)


def _bad_index() -> str:
    """What the flag says, which is lowered again."""
    name = _names[_flag.value - 1]
    _flag.value = 0
    return f"index out of range in self (in an earlier call of the fused kernel {name})"


_flag = ctypes.c_int32(0)
_NOWHERE = ctypes.addressof(_flag)  # before there is such memory
_names: list[str] = []
get_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)
get_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
_FORMATS = {
    DType.F64: "<d",
    DType.F32: "<f",
    DType.F16: "<e",
    DType.I64: "<q",
    DType.I32: "<i",
    DType.I16: "<h",
    DType.I8: "<b",
    DType.U8: "<B",
    DType.BOOL: "<?",
}
