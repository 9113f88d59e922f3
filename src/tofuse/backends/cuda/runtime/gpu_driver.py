"""CUDA's driver, and what launches need of torch's CUDA runtime.

Tests put another driver in place, to launch without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from tofuse.cost.thresholds import CLEARED_BYTES
from tofuse.errors import CompileError
from tofuse.torch_internals.memory import empty_strided_cuda
from tofuse.torch_internals.streams import get_device, get_stream

if TYPE_CHECKING:  # `tofuse.load` does without tile programs
    from tofuse.ir.tile import GpuBinary

NO_CONTEXT = 201
DEFAULT_SHARED_BYTES = 48 * 1024  # a kernel with more needs an attribute set
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for all GPUs

T = TypeVar("T")
LaunchExtra = ctypes.c_void_p * 5  # keys and addresses of the arguments and their size


class GpuDriver(Protocol):
    """Loads and launches machine code; the current device and stream are torch's."""

    def current_device(self) -> int: ...

    def on_device(self, device: int) -> AbstractContextManager[object]:
        """Make a device the current one."""

    def stream(self, device: int) -> int:
        """Return the handle of the current stream."""

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Allocate a tensor on the current device."""

    def load(self, binary: GpuBinary, device: int) -> int:
        """Load machine code and return the handle of its function; raise CompileError."""

    def launch(
        self,
        function: int,
        instances: int,
        threads: int,
        shared: int,
        stream: int,
        extra: ctypes.Array[ctypes.c_void_p],
        device: int,
    ) -> str:
        """Launch; return why that failed, or nothing."""

    def error_flag(self) -> ctypes.c_int32:
        """Return the word of pinned memory where a kernel with a bad index stores its number."""

    def synchronize(self) -> None:
        """Wait for the current device."""

    def is_capturing(self) -> bool:
        """Return whether a graph captures the current stream."""

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Record the launches of a function; return its result, and what replays them."""

    def elapsed_us(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Return the microseconds that each call takes on the current device.

        The L2 cache holds none of its operands before.
        """

    def is_on(self, tensor: torch.Tensor, device: int) -> bool: ...


class CudaDriver:
    """NVIDIA's driver."""

    def __init__(self) -> None:
        library, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p
        library.cuLaunchKernel.argtypes = [pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer]
        self.library, self.cu_launch_kernel = library, library.cuLaunchKernel
        self.current_device, self.stream = get_device, get_stream
        self.flag = self._pinned_flag()
        self.record_lock = threading.Lock()
        self.record_streams: dict[tuple[int, int], torch.cuda.Stream] = {}

    def on_device(self, device: int) -> AbstractContextManager[object]:
        return torch.cuda.device(device)

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        result: torch.Tensor = empty_strided_cuda(shape, strides, dtype)
        return result

    def load(self, binary: GpuBinary, device: int) -> int:
        with torch.cuda.device(device), self._allowed_in_capture():
            self._create_context()
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            status = self.library.cuModuleLoadData(ctypes.byref(module), binary.code)
            if not status:
                name = binary.name.encode()
                status = self.library.cuModuleGetFunction(ctypes.byref(function), module, name)
            if not status and binary.shared > DEFAULT_SHARED_BYTES:
                status = self.library.cuFuncSetAttribute(function, 8, binary.shared)
            if status or function.value is None:
                raise CompileError(self._error(status))
            return function.value

    def launch(
        self,
        function: int,
        instances: int,
        threads: int,
        shared: int,
        stream: int,
        extra: ctypes.Array[ctypes.c_void_p],
        device: int,
    ) -> str:
        arguments = (function, instances, 1, 1, threads, 1, 1, shared, stream, None, extra)
        status = self.cu_launch_kernel(*arguments)
        if status == NO_CONTEXT:  # a thread in which torch has not called CUDA before
            torch.cuda.synchronize(device)
            status = self.cu_launch_kernel(*arguments)
        return self._error(status) if status else ""

    def error_flag(self) -> ctypes.c_int32:
        return self.flag

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Record on a stream of our own, one for each stream: products have memory for each.

        One thread records at a time. A capture that fails leaves its stream the current one, so
        that is set again.
        """
        with self.record_lock:
            before = torch.cuda.current_stream()
            key = before.device_index, before.cuda_stream
            if key not in self.record_streams:
                self.record_streams[key] = torch.cuda.Stream(before.device_index)
            graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
            stream, errors = self.record_streams[key], "thread_local"  # others may allocate
            try:
                with torch.cuda.graph(graph, pool, stream, capture_error_mode=errors):
                    result = function()
            finally:
                torch.cuda.set_stream(before)
            return result, graph.replay

    def elapsed_us(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Time calls on the current stream with events, as `triton.testing.do_bench` does.

        The host prepares a call while the cache is cleared. Host time beyond that is counted.
        """
        other = torch.empty(CLEARED_BYTES, dtype=torch.int8, device="cuda")
        events = []
        for call in calls:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            other.zero_()
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        return [1000 * begin.elapsed_time(end) for begin, end in events]

    def is_on(self, tensor: torch.Tensor, device: int) -> bool:
        return tensor.is_cuda and tensor.device.index == device

    def _create_context(self) -> None:
        """Create this thread's CUDA context if there is none; while it captures, there is one."""
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()

    @contextmanager
    def _allowed_in_capture(self) -> Iterator[None]:
        """Let this thread load code and allocate while a stream is captured, as torch does."""
        mode = ctypes.c_int(RELAXED)
        self.library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            yield
        finally:
            self.library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def _pinned_flag(self) -> ctypes.c_int32:
        self._create_context()
        place = ctypes.c_void_p()
        with self._allowed_in_capture():
            size = ctypes.c_size_t(64)
            status = self.library.cuMemHostAlloc(ctypes.byref(place), size, PORTABLE)
        if status or place.value is None:
            raise CompileError(self._error(status))
        ctypes.memset(place, 0, 64)
        return ctypes.c_int32.from_address(place.value)

    def _error(self, status: int) -> str:
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(status, ctypes.byref(text))
        return f"CUDA error {status}: {(text.value or b'unknown').decode()}"


_cuda_driver = functools.cache(CudaDriver)
_replacement: list[GpuDriver] = []


def gpu_driver() -> GpuDriver:
    """Return NVIDIA's driver, which is opened when it is first used, or what replaces it."""
    return _replacement[-1] if _replacement else _cuda_driver()


def is_driver_open() -> bool:
    return bool(_replacement) or _cuda_driver.cache_info().currsize > 0


@contextmanager
def replaced_driver(driver: GpuDriver) -> Iterator[None]:
    """Let launches of programs that are compiled inside use another driver."""
    _replacement.append(driver)
    try:
        yield
    finally:
        _replacement.remove(driver)
