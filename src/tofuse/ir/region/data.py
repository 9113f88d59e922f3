"""Region: the ops of one kernel, and the verdict on every edge that was considered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Graph, Loc, Op, Value

PLACED = "placed"  # an attribute of a cat


def lends(op: Op) -> bool:
    """Whether an operator of PyTorch's only looks at the memory of its operand."""
    return op.kind == "opaque" and ("view", True) in op.attrs


def is_placed(op: Op) -> bool:
    """Whether it is a cat whose pieces are written where it lies: nothing is left to run."""
    return (PLACED, True) in op.attrs


@dataclass(frozen=True)
class Strided:
    """Where a value lies: in the memory of `root`, from `offset` on, `strides` apart (elements)."""

    root: Value
    offset: Dim
    strides: tuple[Dim, ...]


@dataclass(frozen=True)
class Verdict:
    """Whether two ops were put into one kernel, by which rule, and what it saves.

    `bytes_saved` counts memory traffic no longer done, `launches_saved` kernel calls,
    `recompute` additions done again, `predicted_us` microseconds saved (negative: lost).
    """

    producer: str
    consumer: str
    fused: bool
    rule: str
    bytes_saved: int = 0
    launches_saved: int = 0
    recompute: float = 0.0
    predicted_us: float = 0.0
    loc: Loc | None = None

    def __repr__(self) -> str:
        word = "fused" if self.fused else "not fused"
        at = f"  # {self.loc}" if self.loc else ""
        saved = f" ({self.bytes_saved} bytes saved)" if self.bytes_saved else ""
        return f"{self.producer} -> {self.consumer}: {word}: {self.rule}{saved}{at}"


@dataclass(frozen=True, eq=False)
class Region:
    """Ops in program order, the values other regions read or the program returns, and a name.

    A library region holds one opaque op; a kernel region none.
    """

    name: str
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    library: bool = False

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Values read but not made here, in order of first use."""
        made = {r for op in self.ops for r in op.results}
        return tuple(dict.fromkeys(v for op in self.ops for v in op.inputs if v not in made))

    def renamed(self, name: str) -> Region:
        return replace(self, name=name)


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph cut into regions, in an order that runs; views between regions are in `storage`.

    `fusions` are the merges of groups of ops that led there, in the order they were made;
    `refused` says of each edge that the user wants fused, and that is not, why. `parts` are values
    that own no memory of their own: they are written where a cat of them lies. `halves` names those
    that kernels round as memory would hold them.
    """

    graph: Graph
    regions: tuple[Region, ...]
    storage: dict[Value, Strided]
    verdicts: tuple[Verdict, ...]
    fusions: tuple[Verdict, ...] = ()
    refused: tuple[Verdict, ...] = ()
    parts: dict[Value, Strided] = field(default_factory=dict)
    halves: frozenset[str] = frozenset()
