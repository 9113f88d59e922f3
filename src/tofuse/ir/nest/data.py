"""Nest: a kernel's statements inside loops, with accumulators and scratch rows made explicit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tofuse.ir.dims import Dim
from tofuse.ir.kernel import Affine, Kernel, Load, Reduce, Stmt, show_stmt
from tofuse.ir.schedule import Loop, Schedule
from tofuse.ir.types import DType


@dataclass(frozen=True)
class Scratch:
    """An array in a thread's block of workspace: `offset` and `size` in bytes.

    `index` addresses it by the axes; axes in `tiled` count from the start of their tile.
    """

    name: str
    dtype: DType
    index: Affine
    elements: Dim
    offset: Dim
    tiled: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Do:
    """Run one statement."""

    stmt: Stmt


@dataclass(frozen=True, eq=False)
class Restore:
    """Read a value of an earlier pass back from scratch."""

    name: str
    scratch: Scratch

    @property
    def uses(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class For:
    """A loop over an axis or its tiles. `reductions` begin before it and end after it.

    Meanwhile what `ahead` reads is brought into the cache.
    """

    loop: Loop
    body: tuple[Node, ...]
    reductions: tuple[Accumulate, ...] = ()
    ahead: tuple[Load, ...] = ()


@dataclass(frozen=True, eq=False)
class Accumulate:
    """A reduction under way: in registers, or in `array` where it keeps axes of inner loops.

    argmax and argmin keep the best value so far in `best`, beside its position in `array`. Long
    sums gather in the first of `stages`, which goes into the next every so many steps, and the
    last of them into `array`; see `ir/staged_sum.py`.
    """

    reduce: Reduce
    array: Scratch | None = None
    best: Scratch | None = None
    stages: tuple[Scratch, ...] = ()


Node = Union[Do, Restore, For]  # noqa: UP007


@dataclass(frozen=True, eq=False)
class Phase:
    """A loop band shared out among threads; no phase starts before the last has ended.

    `head` runs once a thread. `partials` accumulate per thread into scratch and are combined
    after the phase. With no `band` the phase is serial.
    """

    band: tuple[Loop, ...]
    head: tuple[Node, ...]
    body: tuple[Node, ...]
    partials: tuple[Accumulate, ...]


@dataclass(frozen=True, eq=False)
class Nest:
    """A scheduled kernel; `saved` are the values kept for a later pass over the same row,
    `keys` the round keys of each seed, and `block_bytes` is the workspace of one thread."""

    kernel: Kernel
    schedule: Schedule
    phases: tuple[Phase, ...]
    saved: dict[str, Scratch]
    keys: dict[str, Scratch]
    block_bytes: Dim

    def __repr__(self) -> str:
        return show_nest(self)


def show_nest(nest: Nest) -> str:
    """Text of the loops, for people."""
    lines = [f"nest {nest.kernel.name}: {nest.schedule!r}"]
    for phase in nest.phases:
        lines.append(f"  phase parallel {' '.join(map(repr, phase.band)) or '-'}:")
        lines += _show_nodes(phase.head, 2)
        lines += [f"    begin {p.reduce.name}" for p in phase.partials]
        lines += _show_nodes(phase.body, 3 if phase.band else 2)
        lines += [f"    combine {p.reduce.name}" for p in phase.partials]
    return "\n".join(lines)


def _show_nodes(nodes: tuple[Node, ...], depth: int) -> list[str]:
    pad, lines = "  " * depth, []
    for node in nodes:
        match node:
            case Do():
                lines.append(pad + show_stmt(node.stmt))
            case Restore():
                lines.append(f"{pad}{node.name} = {node.scratch.name}[{node.scratch.index!r}]")
            case For():
                lines += [f"{pad}begin {a.reduce.name}" for a in node.reductions]
                ahead = "".join(f" ahead {s.buffer}" for s in node.ahead)
                lines.append(f"{pad}for {node.loop!r}{ahead}:")
                lines += _show_nodes(node.body, depth + 1)
                lines += [f"{pad}end {a.reduce.name}" for a in node.reductions]
    return lines
