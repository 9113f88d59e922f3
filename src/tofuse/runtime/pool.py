"""Memory pool: large tensors on warm memory, from blocks that nobody else can see any more.

On a stock allocator the first touch of fresh pages costs more than most kernels. A block is a
torch storage; it is free when its use count says that only the pool's own handles hold it, which
counts views, numpy arrays, DLPack capsules and tensors saved for backward alike.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from sys import getrefcount
from weakref import WeakValueDictionary

import torch
from torch._C import _storage_Use_Count as use_count
from torch._C._dynamo.guards import (  # type: ignore[attr-defined]  # no stubs
    _empty_strided_cpu,
    _reinterpret_tensor,
)

from tofuse.cost.machine import SMALLEST_POOLED

HUGE_PAGE = 2 * 1024 * 1024
MADV_HUGEPAGE = 14
LATEST = 2  # blocks that were lent last are asked first whether they are free
LARGER = 2  # times the request: a free block that large serves it; see docs/measurements.md


class Block:
    """One storage, and for each dtype a handle tensor on it.

    Two counts tell whether anybody else holds it: C++ owners (tensors, views, saved tensors), and
    Python references to the storage object, which `tensor.untyped_storage()` gives away.
    """

    def __init__(self, nbytes: int) -> None:
        raw = torch.empty(nbytes, dtype=torch.uint8)
        self.nbytes = nbytes
        self.storage = raw.untyped_storage()
        self.cdata = self.storage._cdata
        self.address = self.storage.data_ptr()
        self.handles = {torch.uint8: raw}
        _advise_huge_pages(self.address, nbytes)
        self.owners = use_count(self.cdata)
        self.references = getrefcount(self.storage)
        storage = self.storage
        self.named = getrefcount(storage)  # by a variable, too

    def free(self) -> bool:
        return use_count(self.cdata) == self.owners and getrefcount(self.storage) == self.references

    def handle(self, dtype: torch.dtype) -> torch.Tensor:
        found = self.handles.get(dtype)
        if found is None:
            found = torch.empty(0, dtype=dtype).set_(self.storage, 0, (1,), (1,))
            self.handles[dtype] = found
            self.owners += 1
        return found

    def changed(self) -> bool:
        """Whether the storage is no longer ours, resized or put into shared memory, or no longer as
        new: of what numpy has seen, PyTorch does not change the size."""
        return self.storage.data_ptr() != self.address or not self.storage.resizable()


@dataclass(eq=False)
class Bucket:
    """Blocks of one size class: those `lent`, the last one last, and some that have come back.

    Whether a block is free has to be asked of each. All are asked only when none is known to be
    free; before, the last lent are, which are warm in the caches if they have come back.
    """

    lent: list[Block] = field(default_factory=list)
    back: list[Block] = field(default_factory=list)

    def take(self) -> Block | None:
        """A free block, which is then lent."""
        block = self._latest()
        if block is None and (self.back or self._collect()):
            block = self.back.pop()
        if block is not None:
            self.lent.append(block)
        return block

    def _latest(self) -> Block | None:
        lent = self.lent
        for k in range(len(lent) - 1, max(-1, len(lent) - 1 - LATEST), -1):
            if lent[k].free():
                block = lent.pop(k)
                return None if block.changed() else block
        return None

    def _collect(self) -> bool:
        """Whether any block has come back; what is no longer ours is forgotten."""
        asked = [(block, block.free()) for block in self.lent]
        self.lent = [block for block, free in asked if not free]
        self.back = [block for block, free in asked if free and not block.changed()]
        return bool(self.back)

    def all(self) -> list[Block]:
        return self.lent + self.back


@dataclass(eq=False)
class Pool:
    """Blocks by size class. `limit` bounds the bytes it holds, in use or free.

    A request that finds no free block of its class takes a larger one rather than grow the pool:
    a training step's activations lie where the gradients of the step before lay.
    """

    limit: int
    buckets: dict[int, Bucket] = field(default_factory=dict)
    known: WeakValueDictionary[int, Block] = field(default_factory=WeakValueDictionary)
    hits: int = 0
    misses: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def empty(
        self, nbytes: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """An uninitialised tensor of `nbytes`, dense in the given strides (in elements)."""
        if nbytes < SMALLEST_POOLED or nbytes > self.limit:
            return _empty_strided_cpu(shape, strides, dtype)
        size = size_class(nbytes)
        with self.lock:
            block = self._take(size)
            if block is None:
                return _empty_strided_cpu(shape, strides, dtype)
            result: torch.Tensor = _reinterpret_tensor(block.handle(dtype), shape, strides, 0)
            return result

    @property
    def held(self) -> int:
        """Bytes of all blocks."""
        return sum(b.nbytes for bucket in self.buckets.values() for b in bucket.all())

    def _take(self, size: int) -> Block | None:
        bucket = self.buckets.get(size)
        block = bucket.take() if bucket is not None else None
        if block is None:
            block = self._find(size)
        if block is not None:
            self.hits += 1
            return block
        self.misses += 1
        over = self.held + size - self.limit
        if over > 0 and self._trim(over) < over:
            return None
        block = Block(size)
        self.buckets.setdefault(size, Bucket()).lent.append(block)
        self.known[block.cdata] = block
        return block

    def _find(self, size: int) -> Block | None:
        """The smallest free block that is larger, and not too large."""
        for larger in size_classes(size_class(size + 1), LARGER * size):
            bucket = self.buckets.get(larger)
            if bucket is not None and (block := bucket.take()) is not None:
                return block
        return None

    def _trim(self, wanted: int) -> int:
        """Give back free blocks, the largest first, until that many bytes are gone."""
        gone = 0
        for size in sorted(self.buckets, reverse=True):
            kept = Bucket()
            for block in self.buckets[size].all():
                if gone < wanted and block.free():
                    gone += size
                else:
                    kept.lent.append(block)
            self.buckets[size] = kept
        return gone

    def trim(self) -> int:
        """Give all free blocks back to the system; returns their bytes."""
        with self.lock:
            return self._trim(self.held)

    def forked(self) -> None:
        """A child starts with a lock of its own: another thread may have held the parent's."""
        self.lock = threading.Lock()

    def stats(self) -> dict[str, int]:
        """Bytes held, bytes in use by tensors, blocks, hits and misses since the start."""
        with self.lock:
            blocks = [b for bucket in self.buckets.values() for b in bucket.all()]
            used = sum(b.nbytes for b in blocks if not b.free())
            return {
                "held_bytes": self.held,
                "used_bytes": used,
                "limit_bytes": self.limit,
                "blocks": len(blocks),
                "hits": self.hits,
                "misses": self.misses,
            }


def shared(tensor: torch.Tensor) -> bool:
    """Whether anything but Python holds a tensor, or anything but the tensor its memory.

    That is so for saved tensors where the graph is retained, or where hooks or views hold them.
    Together with the references to the tensor (`LOCAL` for one that only a local variable names)
    it tells whether its memory is nobody else's.
    """
    if tensor._use_count() != 1:  # type: ignore[attr-defined]  # no stubs
        return True
    storage = tensor.untyped_storage()
    if not storage.resizable() or storage.is_shared():  # numpy's, a file's, other processes'
        return True
    block = POOL.known.get(storage._cdata)
    owners, references = _LONE if block is None else (block.owners + 1, block.named)
    return use_count(storage._cdata) != owners or getrefcount(storage) != references


def _of_one() -> tuple[int, tuple[int, int]]:
    """References to a tensor that only a variable names; owners of its storage, and references."""
    tensor = torch.empty(1)
    local = getrefcount(tensor)
    storage = tensor.untyped_storage()
    return local, (use_count(storage._cdata), getrefcount(storage))


@functools.lru_cache(maxsize=1 << 12)
def size_class(nbytes: int) -> int:
    """Eight classes to a power of two: at most an eighth is wasted."""
    step = max(4096, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def size_classes(first: int, last: int) -> Iterator[int]:
    """The size classes from one of them up to that many bytes."""
    while first <= last:
        yield first
        first = size_class(first + 1)


def _advise_huge_pages(address: int, size: int) -> None:
    """Ask for 2 MB pages where the block covers any; a refusal costs only speed."""
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
LOCAL, _LONE = _of_one()
if os.name == "posix":
    os.register_at_fork(after_in_child=POOL.forked)
