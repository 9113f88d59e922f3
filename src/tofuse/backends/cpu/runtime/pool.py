"""Memory pool: allocate large tensors in memory whose pages have been touched before.

With the system's allocator, the first touch of new pages costs more than most kernels. A block is a
torch storage. It is free when only the pool's own handles hold it: its use count includes views,
numpy arrays, DLPack capsules and tensors saved for backward.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from sys import getrefcount
from weakref import WeakValueDictionary

import torch

from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.cost.thresholds import MAX_OVERSIZE, RECENT_PROBES
from tofuse.torch_internals.memory import (
    empty_strided_cpu,
    reinterpret_tensor,
    storage_key,
    tensor_use_count,
)
from tofuse.torch_internals.memory import storage_use_count as use_count
from tofuse.torch_internals.storage_owners import COUNTS_SHOW_OWNERS, StorageOwners

HUGE_PAGE = 2 * 1024 * 1024
MADV_HUGEPAGE = 14


class Block(StorageOwners):
    """One storage, and for each dtype a handle: a tensor on it, from which results are made."""

    def __init__(self, nbytes: int) -> None:
        raw = torch.empty(nbytes, dtype=torch.uint8)
        super().__init__(raw)
        self.nbytes = nbytes
        self.handles = {torch.uint8: raw}
        _advise_huge_pages(self.address, nbytes)
        storage = self.storage
        self.references_with_local = getrefcount(storage)  # a local variable counts, too

    def handle(self, dtype: torch.dtype) -> torch.Tensor:
        handle = self.handles.get(dtype)
        if handle is None:
            handle = torch.empty(0, dtype=dtype).set_(self.storage, 0, (1,), (1,))
            self.handles[dtype] = handle
            self.owners += 1
        return handle

    def is_unusable(self) -> bool:
        """Whether the storage was moved, or exported to numpy.

        PyTorch does not resize a storage that numpy has seen, unlike one of a new tensor.
        """
        return self.is_moved() or not self.storage.resizable()


@dataclass(eq=False)
class Bucket:
    """Blocks of one size class: `in_use` when last checked, the most recent last, and `free`.

    A check of all blocks is expensive, so it runs only when no block is known to be free. The most
    recently used blocks are checked first: their memory is still in the caches.
    """

    in_use: list[Block] = field(default_factory=list)
    free: list[Block] = field(default_factory=list)

    def take(self) -> Block | None:
        """Return a free block and mark it as in use; None if there is none."""
        block = self._take_recent()
        if block is None and (self.free or self._collect()):
            block = self.free.pop()
        if block is not None:
            self.in_use.append(block)
        return block

    def _take_recent(self) -> Block | None:
        in_use = self.in_use
        for k in range(len(in_use) - 1, max(-1, len(in_use) - 1 - RECENT_PROBES), -1):
            if in_use[k].is_free():
                block = in_use.pop(k)
                return None if block.is_unusable() else block
        return None

    def _collect(self) -> bool:
        """Check all blocks, drop unusable ones, and return whether any is free."""
        checked = [(block, block.is_free()) for block in self.in_use]
        self.in_use = [block for block, free in checked if not free]
        self.free = [block for block, free in checked if free and not block.is_unusable()]
        return bool(self.free)

    def blocks(self) -> list[Block]:
        return self.in_use + self.free


@dataclass(eq=False)
class Pool:
    """Blocks by size class. `limit` bounds the bytes that the pool holds, in use or free.

    `allocate` makes all other tensors of the runtime, from shape, strides and dtype: programs take
    it when they are loaded. If no block of the request's class is free, a larger one is used before
    the pool grows: the activations of a training step reuse the gradients' memory of the step
    before.
    """

    limit: int
    buckets: dict[int, Bucket] = field(default_factory=dict)
    by_storage: WeakValueDictionary[int, Block] = field(default_factory=WeakValueDictionary)
    hits: int = 0
    misses: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    taking: bool = False  # a signal handler or finalizer finds True if it interrupts a request
    allocate: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] = (
        empty_strided_cpu
    )

    def empty(
        self, nbytes: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return an uninitialized tensor of `nbytes`; strides are in elements and leave no gaps."""
        if nbytes < SMALLEST_POOLED or nbytes > self.limit or not COUNTS_SHOW_OWNERS:
            return self.allocate(shape, strides, dtype)
        with self.lock:
            if self.taking:  # by a caller of this thread
                return self.allocate(shape, strides, dtype)
            self.taking = True
            try:
                block = self._take(size_class(nbytes))
                if block is not None:
                    tensor: torch.Tensor = reinterpret_tensor(
                        block.handle(dtype), shape, strides, 0
                    )
                    return tensor
            finally:
                self.taking = False
        return self.allocate(shape, strides, dtype)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all blocks."""
        return sum(b.nbytes for bucket in self.buckets.values() for b in bucket.blocks())

    def _take(self, size: int) -> Block | None:
        bucket = self.buckets.get(size)
        block = bucket.take() if bucket is not None else None
        if block is None:
            block = self._take_larger(size)
        if block is not None:
            self.hits += 1
            return block
        self.misses += 1
        over = self.held_bytes + size - self.limit
        if over > 0 and self._trim(over) < over:
            return None
        block = self._new_block(size)
        if block is None:
            return None
        self.buckets.setdefault(size, Bucket()).in_use.append(block)
        self.by_storage[block.cdata] = block
        return block

    def _new_block(self, size: int) -> Block | None:
        """Return new memory; None if the system has none even without the pool's free blocks."""
        for _ in range(2):
            try:
                return Block(size)
            except RuntimeError:
                self._trim(self.held_bytes)
        return None

    def _take_larger(self, size: int) -> Block | None:
        """Take the smallest free block that is larger, by at most `MAX_OVERSIZE`."""
        for larger in sorted(s for s in self.buckets if size < s <= MAX_OVERSIZE * size):
            if (block := self.buckets[larger].take()) is not None:
                return block
        return None

    def _trim(self, wanted: int) -> int:
        """Free blocks, the largest first, until `wanted` bytes are freed; return the bytes."""
        freed = 0
        for size in sorted(self.buckets, reverse=True):
            kept = Bucket()
            for block in self.buckets[size].blocks():
                if freed < wanted and block.is_free():
                    freed += size
                else:
                    kept.in_use.append(block)
            self.buckets[size] = kept
        return freed

    def trim(self) -> int:
        """Return all free blocks to the system; return their bytes."""
        with self.lock:
            return self._trim(self.held_bytes)

    def reset_lock(self) -> None:
        """Make a new lock in the child of a fork: another thread may have held the parent's."""
        self.lock, self.taking = threading.RLock(), False

    def stats(self) -> dict[str, int]:
        """Return bytes held, bytes in use by tensors, blocks, and hits and misses so far."""
        with self.lock:
            blocks = [b for bucket in self.buckets.values() for b in bucket.blocks()]
            used = sum(b.nbytes for b in blocks if not b.is_free())
            return {
                "held_bytes": self.held_bytes,
                "used_bytes": used,
                "limit_bytes": self.limit,
                "blocks": len(blocks),
                "hits": self.hits,
                "misses": self.misses,
            }


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether a tensor has other C++ owners, or its memory other owners than the tensor.

    This is so for saved tensors if the graph is retained, or if hooks or views hold them. A caller
    that must be the only owner compares the Python references to the tensor with
    `LOCAL_REFERENCES`, the count for a tensor that only one local variable names.
    """
    if tensor_use_count(tensor) != 1 or not COUNTS_SHOW_OWNERS:
        return True
    storage = tensor.untyped_storage()
    if not storage.resizable() or storage.is_shared():  # memory of numpy, a file or other processes
        return True
    block = POOL.by_storage.get(storage_key(storage))
    if block is None:
        owners, references = _UNSHARED_COUNTS
    else:
        owners, references = block.owners + 1, block.references_with_local
    return use_count(storage_key(storage)) != owners or getrefcount(storage) != references


def _unshared_counts() -> tuple[int, tuple[int, int]]:
    """Return the references to a tensor that only a local variable names, and the owners of and
    references to its storage."""
    tensor = torch.empty(1, device="cpu")
    local = getrefcount(tensor)
    storage = tensor.untyped_storage()
    return local, (use_count(storage_key(storage)), getrefcount(storage))


@functools.lru_cache(maxsize=1 << 12)
def size_class(nbytes: int) -> int:
    """Return the bytes of the smallest size class that holds `nbytes`.

    There are eight classes between powers of two, so at most an eighth is wasted.
    """
    step = max(4096, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def _advise_huge_pages(address: int, size: int) -> None:
    """Request 2 MB pages for the part of a block that covers whole ones; ignore a refusal."""
    start = -(-address // HUGE_PAGE) * HUGE_PAGE
    length = (address + size - start) // HUGE_PAGE * HUGE_PAGE
    if length <= 0 or _libc is None:
        return
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(MADV_HUGEPAGE))


def _find_libc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        library.madvise  # noqa: B018  (looked up when touched)
    except (OSError, AttributeError, TypeError):
        return None
    return library if "MADV_HUGEPAGE" in vars(mmap) else None


_libc = _find_libc()
POOL = Pool(limit=0)
LOCAL_REFERENCES, _UNSHARED_COUNTS = _unshared_counts()
if os.name == "posix":
    os.register_at_fork(after_in_child=POOL.reset_lock)
