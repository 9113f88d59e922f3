"""What planning must know of a kernel: what a launch writes, and which launches may be one."""

from __future__ import annotations

from dataclasses import dataclass

AliasPairs = tuple[tuple[int, int], ...]  # positions (read, written) of buffers


@dataclass(frozen=True)
class LaunchFacts:
    """What a launch of a kernel writes, and with which others it may be one launch.

    `write_mask` says which buffers the kernel writes; None if the kernel must have a launch of its
    own. `alias_pairs` are the buffers that may be the same memory. A group of a kernel with a
    `group_limit` has at most so many launches, all of this kernel and equal in `aligned_sizes`:
    whether the sizes at these positions are multiples of 16.
    """

    write_mask: tuple[bool, ...] | None
    alias_pairs: AliasPairs = ()
    group_limit: int | None = None
    aligned_sizes: tuple[int, ...] = ()
