"""Nest: a kernel's statements inside loops, with explicit accumulators and scratch rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tofuse.ir.dims import Dim
from tofuse.ir.kernel import AffineExpr, Kernel, Load, Reduce, Stmt, show_stmt
from tofuse.ir.schedule import Loop, Schedule
from tofuse.ir.types import DType


@dataclass(frozen=True)
class Scratch:
    """An array of `elements` elements, `offset` bytes into a thread's block of workspace.

    `index` addresses it by the axes. Axes in `tiled` count from the start of their tile.
    """

    name: str
    dtype: DType
    index: AffineExpr
    elements: Dim
    offset: Dim
    tiled: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class StmtNode:
    """Run one statement."""

    stmt: Stmt


@dataclass(frozen=True, eq=False)
class Reload:
    """Load a spilled value of an earlier loop from scratch."""

    name: str
    scratch: Scratch

    @property
    def uses(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class For:
    """A loop over an axis or its tiles. `reductions` start before it and finish after it.

    The memory of the loads in `prefetch` is brought into the cache meanwhile.
    """

    loop: Loop
    body: tuple[Node, ...]
    reductions: tuple[Accumulator, ...] = ()
    prefetch: tuple[Load, ...] = ()


@dataclass(frozen=True, eq=False)
class Accumulator:
    """The state of a reduction: registers, or `array` if its value depends on inner loops' axes.

    argmax and argmin keep the extreme value in `best` and its position in `array`. A long sum
    adds into the first of `stages`. Each stage is added to the next after a fixed number of
    steps, the last one to `array`; see `ir/staged_sum.py`.
    """

    reduce: Reduce
    array: Scratch | None = None
    best: Scratch | None = None
    stages: tuple[Scratch, ...] = ()


Node = Union[StmtNode, Reload, For]  # noqa: UP007
NestStmt = Union[Stmt, Reload]  # noqa: UP007


@dataclass(frozen=True, eq=False)
class Phase:
    """A band of parallel loops, with a barrier after it. An empty `band` is a serial phase.

    `prologue` runs once per thread. `partials` accumulate per thread into scratch and are combined
    after the phase.
    """

    band: tuple[Loop, ...]
    prologue: tuple[Node, ...]
    body: tuple[Node, ...]
    partials: tuple[Accumulator, ...]


@dataclass(frozen=True, eq=False)
class Nest:
    """A scheduled kernel.

    `spills` holds the values that a later loop over the same row reloads, `philox_keys` the round
    keys of each seed. `block_bytes` is the workspace of one thread.
    """

    kernel: Kernel
    schedule: Schedule
    phases: tuple[Phase, ...]
    spills: dict[str, Scratch]
    philox_keys: dict[str, Scratch]
    block_bytes: Dim

    def __repr__(self) -> str:
        """Return the text of the loops. It has no parser."""
        lines = [f"nest {self.kernel.name}: {self.schedule!r}"]
        for phase in self.phases:
            lines.append(f"  phase parallel {' '.join(map(repr, phase.band)) or '-'}:")
            lines += _show_nodes(phase.prologue, 2)
            lines += [f"    begin {p.reduce.name}" for p in phase.partials]
            lines += _show_nodes(phase.body, 3 if phase.band else 2)
            lines += [f"    combine {p.reduce.name}" for p in phase.partials]
        return "\n".join(lines)


def _show_nodes(nodes: tuple[Node, ...], depth: int) -> list[str]:
    pad, lines = "  " * depth, []
    for node in nodes:
        match node:
            case StmtNode():
                lines.append(pad + show_stmt(node.stmt))
            case Reload():
                lines.append(f"{pad}{node.name} = {node.scratch.name}[{node.scratch.index!r}]")
            case For():
                lines += [f"{pad}begin {a.reduce.name}" for a in node.reductions]
                ahead = "".join(f" prefetch {s.buffer}" for s in node.prefetch)
                lines.append(f"{pad}for {node.loop!r}{ahead}:")
                lines += _show_nodes(node.body, depth + 1)
                lines += [f"{pad}end {a.reduce.name}" for a in node.reductions]
    return lines
