"""Tensors between pages that nobody may touch: one byte out of bounds ends the process."""

import ctypes
import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tofuse.backends.cpu.runtime.pool import POOL

PAGE = mmap.PAGESIZE
PROT_NONE = 0
_protect = ctypes.CDLL(None, use_errno=True).mprotect


class GuardPages:
    """Allocates tensors that end (or begin) exactly at a page without access."""

    def __init__(self, flush: str) -> None:
        assert flush in ("end", "start")
        self.flush = flush

    def storage(self, nbytes: int) -> Tensor:
        """Return bytes filled with a pattern that is a nan, or a large integer."""
        pages = -(-nbytes // PAGE)
        memory = mmap.mmap(-1, (pages + 2) * PAGE)
        first = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        start = PAGE + (pages * PAGE - nbytes if self.flush == "end" else 0)
        result = torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=nbytes)
        for guard in (first, first + (pages + 1) * PAGE):
            if _protect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        return result.fill_(0xFF)

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized tensor, as `torch.empty_strided` does."""
        length = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if 0 in shape:
            return torch.empty_strided(shape, strides, dtype=dtype)
        raw = self.storage(length * dtype.itemsize)
        return torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), 0, shape, strides)

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors on guarded copies of their storages; views share theirs."""
        storages: dict[int, Tensor] = {}

        def copy(x: Tensor) -> Tensor:
            old = x.untyped_storage()
            if not old.nbytes():
                return x
            if old.data_ptr() not in storages:
                guarded = storages[old.data_ptr()] = self.storage(old.nbytes())
                guarded.copy_(torch.empty(0, dtype=torch.uint8).set_(old))
            place = storages[old.data_ptr()].untyped_storage()
            new = torch.empty(0, dtype=x.dtype)
            return new.set_(place, x.storage_offset(), x.shape, x.stride())

        with torch.no_grad():
            copied = {id(x): copy(x) for x in tensors}
        return [copied[id(x)] for x in tensors]

    def install(self) -> Callable[[], None]:
        """Let the runtime allocate everything so; return a function that undoes it."""
        old, limit = POOL.allocate, POOL.limit
        POOL.allocate, POOL.limit = self.empty, 0

        def undo() -> None:
            POOL.allocate, POOL.limit = old, limit

        return undo
