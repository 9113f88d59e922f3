"""How a region's kernel is launched: which values its buffers hold, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value

AliasPairs = tuple[tuple[int, int], ...]  # positions (read, written) of buffers


@dataclass(frozen=True)
class KernelBinding:
    """A kernel's number, the values that own its buffers' memory, and its sizes.

    `write_mask` says which buffers the kernel writes; None if the kernel must have a launch of its
    own. `alias_pairs` are the buffers that may be the same memory. A group of a kernel with a
    `group_limit` has at most so many launches, all of this kernel and equal in `aligned_sizes`:
    whether the sizes at these positions are multiples of 16.
    """

    kernel: int
    arguments: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    write_mask: tuple[bool, ...] | None
    alias_pairs: AliasPairs = ()
    group_limit: int | None = None
    aligned_sizes: tuple[int, ...] = ()

    def may_alias(self, read: Value, written: Value) -> bool:
        """Whether the kernel may write one value into the memory of the other, which it reads."""
        if sum(v is read for v in self.arguments) != 1:
            return False
        pairs = ((self.arguments[i], self.arguments[j]) for i, j in self.alias_pairs)
        return any(a is read and b is written for a, b in pairs)
