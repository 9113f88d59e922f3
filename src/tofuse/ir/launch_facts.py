"""What planning must know of a kernel: what a launch writes, and which launches may be one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tofuse.ir.row_access import KernelRows

AliasPairs = tuple[tuple[int, int], ...]  # positions (read, written) of buffers


@dataclass(frozen=True)
class LaunchFacts:
    """What a launch of a kernel writes, and with which others it may be one launch.

    `write_mask` says which buffers the kernel writes; None if the kernel must have a launch of its
    own. `alias_pairs` are the buffers that may be the same memory. A group of a kernel with a
    `group_limit` has at most so many launches, all of this kernel and equal in `aligned_sizes`:
    whether the sizes at these positions are multiples of 16. `tileable` returns what tiles of its
    rows need; None if it has no such rows.
    """

    write_mask: tuple[bool, ...] | None
    alias_pairs: AliasPairs = ()
    group_limit: int | None = None
    aligned_sizes: tuple[int, ...] = ()
    tileable: Callable[[], TileableKernel | None] = lambda: None


@dataclass(frozen=True)
class TileableKernel:
    """A kernel whose rows can run separately, with its predicted time.

    `us` is the time of a launch, `work_us` that of its arithmetic alone, and `traffic_us` that of
    transferring `nbytes`. `nontemporal` are the buffers that it stores past the caches.
    """

    rows: KernelRows
    us: float
    work_us: float
    traffic_us: float
    nbytes: int
    nontemporal: frozenset[int]
