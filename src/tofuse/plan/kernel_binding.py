"""How a region's kernel is launched: which values its buffers hold, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value
from tofuse.ir.launch_facts import LaunchFacts


@dataclass(frozen=True)
class KernelBinding:
    """A kernel's number, the values that own its buffers' memory, and its sizes."""

    kernel: int
    arguments: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    facts: LaunchFacts

    def may_alias(self, read: Value, written: Value) -> bool:
        """Whether the kernel may write one value into the memory of the other, which it reads."""
        if sum(v is read for v in self.arguments) != 1:
            return False
        pairs = ((self.arguments[i], self.arguments[j]) for i, j in self.facts.alias_pairs)
        return any(a is read and b is written for a, b in pairs)
