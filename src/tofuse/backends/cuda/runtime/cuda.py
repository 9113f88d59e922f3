"""Launch GPU kernels: load machine code, pack arguments, and launch on torch's stream."""

from __future__ import annotations

import atexit
import ctypes
import functools
import operator
import struct
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from tofuse.backends.cuda.runtime.gpu_driver import (
    GpuDriver,
    LaunchExtra,
    gpu_driver,
    is_driver_open,
)
from tofuse.config import CUDA_LAUNCH_BLOCKING
from tofuse.errors import IndexOutOfRangeError, TofuseWarning
from tofuse.ir.dims import Dim, evaluate
from tofuse.ir.types import DType
from tofuse.ops.reference import TO_TORCH

if TYPE_CHECKING:  # `tofuse.load` does without tile programs
    from tofuse.ir.tile import GpuBinary, GpuCall

# The code of launch number k, given which of its arguments are multiples of 16.
CompileBinary = Callable[[int, "tuple[bool, ...]"], "GpuBinary"]
AllocateTensor = Callable[..., torch.Tensor]
LAUNCH_PARAM_KEYS = (1, 2)  # CU_LAUNCH_PARAM_BUFFER_POINTER and _BUFFER_SIZE
ALIGNMENT = 256
MAX_ALIGNMENTS = 16  # parameters; with more, the code for some unaligned ones aligns none
MAX_SIZES = 64  # for which a launcher keeps the offsets of its workspaces
SEED_WORDS = 2


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
        self.driver = gpu_driver()
        self.flag = self.driver.error_flag()
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
        driver = self.driver
        if self.flag.value:
            raise_bad_index(driver)
        if driver.current_device() != self.device:
            with driver.on_device(self.device):
                return self(*words)
        stream = driver.stream(self.device)
        if self.needs_no_packing:
            self.launches[0].launch(words, words, stream)
            return wait_if_blocking(driver)
        offsets, total = self.workspace_offsets(*words[self.first_symbol :])
        workspace: torch.Tensor | None = None  # keeps the memory allocated
        base = 0
        if total:
            workspace = driver.empty((total,), (1,), torch.uint8)
            base = workspace.data_ptr()
        for launch in self.launches:
            launch.launch(launch.pack(words, base, offsets), words, stream)
        return wait_if_blocking(driver)

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
        self.buffer[count : count + 2] = [ctypes.addressof(owner.flag), error]
        self.size = ctypes.c_size_t(8 * (count + 4))
        self.extra = LaunchExtra(
            LAUNCH_PARAM_KEYS[0],
            ctypes.addressof(self.buffer),
            LAUNCH_PARAM_KEYS[1],
            ctypes.addressof(self.size),
            0,
        )
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
            handle = self.owner.driver.load(binary, self.owner.device)
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
            few = len(self.alignable) <= MAX_ALIGNMENTS
            pairs = enumerate(packed)
            aligned = tuple(few and k in self.alignable and w & 15 == 0 for k, w in pairs)
            function = self.function(aligned)
        handle, threads, shared = function
        with self.lock:
            self.pack_into(self.buffer, 0, *packed)
            place = stream, self.extra, self.owner.device
            error = self.owner.driver.launch(handle, instances, threads, shared, *place)
        if error:
            raise RuntimeError(f"{error}, in {self.owner.name}")


def _tuple_getter(positions: Sequence[int]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """Return a function that takes the elements at these positions of a tuple."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: tuple(values[k] for k in positions)


def empty_on(device: str) -> AllocateTensor:
    """Return a function `empty(shape, strides, dtype)` that allocates on a device."""
    driver, index = gpu_driver(), device_index(device)

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if driver.current_device() == index:
            return driver.empty(shape, strides, dtype)
        with driver.on_device(index):
            return driver.empty(shape, strides, dtype)

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


def device_name(device: str) -> str:
    """Return the name of a GPU, such as "NVIDIA H100 80GB HBM3"; an H200's without a GPU."""
    if not torch.cuda.is_available():
        return "NVIDIA H200"
    return torch.cuda.get_device_name(torch.device(device))


def seed_address(t: torch.Tensor) -> int:
    """Return the address of a seed of a GPU kernel, negative if it is in GPU memory."""
    return -t.data_ptr() if t.is_cuda else t.data_ptr()


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


def synchronize() -> None:
    """Wait for the GPU, if torch uses one; raise IndexOutOfRangeError like a launch."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if is_driver_open():
        raise_bad_index(gpu_driver())


def raise_bad_index(driver: GpuDriver) -> None:
    """Raise IndexOutOfRangeError if a kernel has found an index out of range."""
    if (flag := driver.error_flag()).value:
        raise IndexOutOfRangeError(_index_error_message(flag))


def wait_if_blocking(driver: GpuDriver) -> None:
    """Wait for a launch if `CUDA_LAUNCH_BLOCKING` is set, unless a graph captures it."""
    if CUDA_LAUNCH_BLOCKING and not driver.is_capturing():
        synchronize()


def _warn_at_exit() -> None:
    """Warn about a bad index at the end of the process, when no call can raise it."""
    if is_driver_open() and (flag := gpu_driver().error_flag()).value:
        warnings.warn(_index_error_message(flag), TofuseWarning, stacklevel=2)


def _index_error_message(flag: ctypes.c_int32) -> str:
    """Return the message for the kernel number in the flag, and clear the flag."""
    name = _kernel_names[flag.value - 1]
    flag.value = 0
    return f"index out of range in self (in an earlier call of the fused kernel {name})"


atexit.register(_warn_at_exit)
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
