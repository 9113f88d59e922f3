"""Launch GPU kernels: load machine code, pack arguments, and launch on torch's stream."""

from __future__ import annotations

import atexit
import ctypes
import functools
import operator
import struct
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from tofuse.config import CUDA_LAUNCH_BLOCKING
from tofuse.errors import CompileError, IndexOutOfRangeError, TofuseWarning
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.types import DType
from tofuse.ops.reference import TO_TORCH
from tofuse.torch_internals.memory import empty_strided_cuda
from tofuse.torch_internals.streams import get_device, get_stream

if TYPE_CHECKING:  # `tofuse.load` does without tile programs
    from tofuse.ir.tile import GpuBinary, GpuCall

# The code of launch number k, given which of its arguments are multiples of 16.
CompileBinary = Callable[[int, "tuple[bool, ...]"], "GpuBinary"]
AllocateTensor = Callable[..., torch.Tensor]
NO_CONTEXT = 201
DEFAULT_SHARED_BYTES = 48 * 1024  # a kernel with more needs an attribute set
LAUNCH_PARAM_KEYS = (1, 2)  # CU_LAUNCH_PARAM_BUFFER_POINTER and _BUFFER_SIZE
ALIGNMENT = 256
MAX_SIZES = 64  # for which a launcher keeps the offsets of its workspaces
SEED_WORDS = 2
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for all GPUs


class CudaLauncher:
    """GPU code that can be called with the words of `call`: addresses of buffers, and sizes.

    A seed at a negative address is in GPU memory; others are in CPU memory.
    """

    def __init__(
        self,
        call: GpuCall,
        parameters: Sequence[Sequence[tuple[str, str]]],
        compile_binary: CompileBinary,
        device: int,
    ) -> None:
        self.name, self.device = call.name, device
        self.words = {name: k for k, name in enumerate(call.words)}
        self.symbols, self.first_symbol = call.symbols, len(call.words) - len(call.symbols)
        self.dtypes = {b.name: b.dtype for b in call.buffers}
        hosts = {b.name for b in call.buffers if b.role == "host"}
        self.seeds = call.seeds & hosts
        self.host_seeds = tuple(k for k, name in enumerate(call.words) if name in self.seeds)
        self.workspaces: list[tuple[str, Dim]] = [
            (w.name, w.elements * w.dtype.itemsize) for w in call.workspaces
        ]
        _kernel_names.append(self.name)
        number = len(_kernel_names)
        self.launches = [
            _NestLauncher(self, call, k, names, compile_binary, number)
            for k, names in enumerate(parameters)
        ]
        self.needs_no_packing = len(self.launches) == 1 and self.launches[0].needs_no_packing
        self.workspace_offsets = functools.lru_cache(MAX_SIZES)(self._workspace_offsets)

    def __call__(self, *words: int) -> None:
        """Launch; raise IndexOutOfRangeError if an earlier launch found an index out of range."""
        if _flag.value:
            raise IndexOutOfRangeError(_index_error_message())
        if get_device() != self.device:
            with torch.cuda.device(self.device):
                return self(*words)
        stream = get_stream(self.device)
        if self.needs_no_packing:
            self.launches[0].launch(words, words, stream)
            return _wait_if_blocking()
        offsets, total = self.workspace_offsets(*words[self.first_symbol :])
        workspace: torch.Tensor | None = None  # keeps the memory allocated
        base = 0
        if total:
            workspace = empty_strided_cuda((total,), (1,), torch.uint8)
            base = workspace.data_ptr()
        for launch in self.launches:
            launch.launch(launch.pack(words, base, offsets), words, stream)
        return _wait_if_blocking()

    def _workspace_offsets(self, *sizes: int) -> tuple[list[int], int]:
        """Return the byte offset of each workspace, and the bytes of all."""
        offsets, total = [], 0
        env = dict(zip(self.symbols, sizes, strict=True))
        for _, nbytes in self.workspaces:
            offsets.append(total)
            total += -(-evaluate(nbytes, env) // ALIGNMENT) * ALIGNMENT
        return offsets, total


class _NestLauncher:
    """One launch of a tile program, with machine code for each alignment of its arguments."""

    def __init__(
        self,
        owner: CudaLauncher,
        call: GpuCall,
        number: int,
        parameters: Sequence[tuple[str, str]],
        compile_binary: CompileBinary,
        error: int,
    ) -> None:
        self.owner, self.number, self.instances = owner, number, call.instances[number]
        self.compile_binary = compile_binary
        self.names = [name for name, _ in parameters[:-2]]
        count = len(self.names)
        self.pack_into = struct.Struct(f"<{count}Q").pack_into
        # then the flag, the number to store there, and Triton's two scratch pointers
        self.buffer = (ctypes.c_uint64 * (count + 4))()
        self.buffer[count : count + 2] = [ctypes.addressof(_pinned_flag()), error]
        self.size = ctypes.c_size_t(8 * (count + 4))
        self.extra = _LaunchExtra(
            LAUNCH_PARAM_KEYS[0],
            ctypes.addressof(self.buffer),
            LAUNCH_PARAM_KEYS[1],
            ctypes.addressof(self.size),
            0,
        )
        self.cu_launch_kernel = _driver().cuLaunchKernel
        self.lock = threading.Lock()  # protects the buffer that arguments are packed into
        self.needs_no_packing = self.names == list(owner.words)
        positions, self.numbers = self._argument_sources()
        self.select = _tuple_getter(positions)
        self.functions: dict[tuple[bool, ...], tuple[int, int, int]] = {}
        aligned = call.aligned([name for name, _ in parameters])[:count]
        self.alignable = frozenset(k for k, is_aligned in enumerate(aligned) if is_aligned)
        self.select_alignable = _tuple_getter(sorted(self.alignable))
        self.aligned_function = self.function(aligned)

    def function(self, divisible: tuple[bool, ...]) -> tuple[int, int, int]:
        """Return handle, threads and shared bytes of the code for arguments divisible by 16."""
        if divisible not in self.functions:
            binary = self.compile_binary(self.number, (*divisible, True, False))
            with torch.cuda.device(self.owner.device), _allowed_in_capture():
                handle = _load_function(binary)
            self.functions[divisible] = (handle, binary.threads, binary.shared)
        return self.functions[divisible]

    def _argument_sources(self) -> tuple[list[int], list[tuple[int, int, DType | None]]]:
        """Return the position of each argument, and the numbers that are read in CPU memory.

        Positions count the words of a call, the workspaces, and these numbers: for each its word,
        which is an address, its place there, and its dtype, or None for a seed.
        """
        owner = self.owner
        at = dict(owner.words)
        at |= {name: len(at) + k for k, (name, _) in enumerate(owner.workspaces)}
        positions, numbers = [], list[tuple[int, int, "DType | None"]]()
        for name in self.names:
            if name in at:
                positions.append(at[name])
                continue
            buffer, _, k = name.rpartition("_")
            dtype = None if buffer in owner.seeds else owner.dtypes[buffer]
            positions.append(len(at) + len(numbers))
            numbers.append((owner.words[buffer], int(k), dtype))
        return positions, numbers

    def pack(self, words: tuple[int, ...], base: int, offsets: Sequence[int]) -> tuple[int, ...]:
        """Return the arguments of this launch, from those of the program."""
        addresses = [base + offset for offset in offsets]
        numbers = [
            _seed_bits(words[at], k) if dtype is None else _host_scalar_bits(words[at], k, dtype)
            for at, k, dtype in self.numbers
        ]
        return self.select((*words, *addresses, *numbers))

    def launch(self, packed: tuple[int, ...], words: tuple[int, ...], stream: int) -> None:
        instances = self.instances
        if not isinstance(instances, int):
            sizes = words[self.owner.first_symbol :]
            instances = instances(dict(zip(self.owner.symbols, sizes, strict=True)))
        if instances == 0:
            return
        function = self.aligned_function
        if functools.reduce(operator.or_, self.select_alignable(packed), 0) & 15:
            pairs = enumerate(packed)
            function = self.function(tuple(k in self.alignable and w & 15 == 0 for k, w in pairs))
        handle, threads, shared = function
        with self.lock:
            self.pack_into(self.buffer, 0, *packed)
            arguments = (handle, instances, 1, 1, threads, 1, 1, shared, stream, None, self.extra)
            status = self.cu_launch_kernel(*arguments)
            if status == NO_CONTEXT:  # a thread in which torch has not called CUDA before
                torch.cuda.synchronize(self.owner.device)
                status = self.cu_launch_kernel(*arguments)
        if status:
            raise RuntimeError(
                f"CUDA error {status}: {_error_message(status)}, in {self.owner.name}"
            )


def _tuple_getter(positions: Sequence[int]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """Return a function that takes the elements at these positions of a tuple."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: tuple(values[k] for k in positions)


_LaunchExtra = ctypes.c_void_p * 5


def empty_on(device: str) -> AllocateTensor:
    """Return a function `empty(shape, strides, dtype)` that allocates on a device."""
    place, index = torch.device(device), device_index(device)

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if get_device() == index:
            result: torch.Tensor = empty_strided_cuda(shape, strides, dtype)
            return result
        return torch.empty_strided(shape, strides, dtype=dtype, device=place)

    return empty


def device_index(device: str) -> int:
    """Return the index of a GPU."""
    return torch.device(device).index or 0


def capability(device: str) -> tuple[int, int]:
    """Return compute capability, such as 90, and multiprocessors; an H200's without a GPU."""
    if not torch.cuda.is_available():
        return 90, 132
    found = torch.cuda.get_device_properties(torch.device(device))
    return 10 * found.major + found.minor, found.multi_processor_count


@functools.cache
def _driver() -> ctypes.CDLL:
    """Open NVIDIA's driver library."""
    driver, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p
    driver.cuLaunchKernel.argtypes = [pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer]
    return driver


def _load_function(binary: GpuBinary) -> int:
    """Load a binary in the current context and return its function; raise CompileError if that
    fails."""
    driver = _driver()
    _create_context()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    status = driver.cuModuleLoadData(ctypes.byref(module), binary.code)
    if not status:
        status = driver.cuModuleGetFunction(ctypes.byref(function), module, binary.name.encode())
    if not status and binary.shared > DEFAULT_SHARED_BYTES:
        status = driver.cuFuncSetAttribute(function, 8, binary.shared)
    if status or function.value is None:
        raise CompileError(f"CUDA error {status}: {_error_message(status)}")
    return function.value


def _create_context() -> None:
    """Create this thread's CUDA context if there is none; while it captures, there is one."""
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


@contextmanager
def _allowed_in_capture() -> Iterator[None]:
    """Let this thread load code and allocate while a stream is captured, as torch does."""
    mode = ctypes.c_int(RELAXED)
    _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _error_message(status: int) -> str:
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(status, ctypes.byref(text))
    return (text.value or b"unknown").decode()


def _seed_bits(address: int, k: int) -> int:
    """Return number `k` of a seed: its words, then the address of words in GPU memory, or 0.

    `address` is negative if the words are there.
    """
    if k == SEED_WORDS:
        return max(0, -address)
    return 0 if address < 0 else _host_scalar_bits(address, k, DType.I64)


def _host_scalar_bits(address: int, k: int, dtype: DType) -> int:
    """Read a scalar in CPU memory; return the 8 bytes that it is passed as."""
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


def _pinned_flag() -> ctypes.c_int32:
    """Return the word of pinned memory where a kernel that finds a bad index stores its number."""
    global _flag
    if ctypes.addressof(_flag) == _UNPINNED_ADDRESS:
        _create_context()
        place = ctypes.c_void_p()
        with _allowed_in_capture():
            status = _driver().cuMemHostAlloc(ctypes.byref(place), ctypes.c_size_t(64), PORTABLE)
        if status or place.value is None:
            raise CompileError(f"CUDA error {status}: {_error_message(status)}")
        ctypes.memset(place, 0, 64)
        atexit.register(_warn_at_exit)
        _flag = ctypes.c_int32.from_address(place.value)
    return _flag


def synchronize() -> None:
    """Wait for the GPU, if torch uses one; raise IndexOutOfRangeError like a launch."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if _flag.value:
        raise IndexOutOfRangeError(_index_error_message())


def _wait_if_blocking() -> None:
    """Wait for a launch if `CUDA_LAUNCH_BLOCKING` is set, unless a graph captures it."""
    if CUDA_LAUNCH_BLOCKING and not torch.cuda.is_current_stream_capturing():
        synchronize()


def _warn_at_exit() -> None:
    """Warn about a bad index at the end of the process, when no call can raise it."""
    if _flag.value:
        warnings.warn(_index_error_message(), TofuseWarning, stacklevel=2)


def _index_error_message() -> str:
    """Return the message for the kernel number in the flag, and clear the flag."""
    name = _kernel_names[_flag.value - 1]
    _flag.value = 0
    return f"index out of range in self (in an earlier call of the fused kernel {name})"


_flag = ctypes.c_int32(0)
_UNPINNED_ADDRESS = ctypes.addressof(_flag)  # until pinned memory is allocated
_kernel_names: list[str] = []
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
