"""Nest: a kernel's statements inside loops, with explicit accumulators and scratch rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Union

from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim
from tofuse.ir.kernel import Carried, Kernel, Load, Reduce, Stmt, show_stmt
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

    The memory of the loads in `prefetch` is brought into the cache meanwhile. `carries` hold
    the values that each iteration hands to the next.
    """

    loop: Loop
    body: tuple[Node, ...]
    reductions: tuple[Accumulator, ...] = ()
    prefetch: tuple[Load, ...] = ()
    carries: tuple[Carry, ...] = ()

    @property
    def runs_down(self) -> bool:
        """Whether the loop starts at the end of the axis."""
        return any(c.stmt.reverse for c in self.carries)


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

    @property
    def arrays(self) -> tuple[Scratch, ...]:
        return tuple(s for s in (self.array, self.best, *self.stages) if s is not None)


@dataclass(frozen=True, eq=False)
class Carry:
    """The value of a scan, or of a `Next`, that one iteration hands to the next.

    It is in a register, or in `array` if it depends on the axes of inner loops.
    """

    stmt: Carried
    array: Scratch | None = None


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

    @property
    def loops_text(self) -> str:
        """The text of the loops, without the kernel."""
        lines = [f"nest {self.kernel.name}: {self.schedule!r}; workspace {self.block_bytes}"]
        lines += map(self._show_scratch, _arrays(self))
        for phase in self.phases:
            band = " ".join(map(repr, phase.band))
            lines += ["  phase:", *_show_nodes(phase.prologue, 2)]
            lines += [f"    begin {_show_accumulator(a)}" for a in phase.partials]
            lines.append(f"    parallel {band}:" if band else "    serial:")
            lines += _show_nodes(phase.body, 3)
            lines += [f"    combine {a.reduce.name}" for a in phase.partials]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the text of the kernel and of its loops, which `parse_nest` accepts."""
        return f"{self.kernel!r}\n{self.loops_text}"

    def _show_scratch(self, s: Scratch) -> str:
        tiled = f" tiled {','.join(s.tiled)}" if s.tiled else ""
        spills = "".join(f" spills {name}" for name, x in self.spills.items() if x is s)
        keys = "".join(f" keys {seed}" for seed, x in self.philox_keys.items() if x is s)
        array = f"{s.dtype.value}[{s.elements}] at {s.offset} index [{s.index!r}]"
        return f"  scratch {s.name}: {array}{tiled}{spills}{keys}"


def statements_in(nodes: Sequence[Node]) -> Iterator[Stmt]:
    """Yield the statements of these nodes, at any depth."""
    for node in nodes:
        if isinstance(node, For):
            yield from statements_in(node.body)
        elif isinstance(node, StmtNode):
            yield node.stmt


def _arrays(nest: Nest) -> Iterable[Scratch]:
    """Return the scratch arrays of a nest, each once."""
    found = [*nest.spills.values(), *nest.philox_keys.values()]
    for phase in nest.phases:
        found += _arrays_of(phase.prologue)
        found += (x for a in phase.partials for x in a.arrays)
        found += _arrays_of(phase.body)
    return {s.name: s for s in found}.values()


def _arrays_of(nodes: tuple[Node, ...]) -> Iterator[Scratch]:
    for node in nodes:
        if isinstance(node, Reload):
            yield node.scratch
        elif isinstance(node, For):
            yield from (x for a in node.reductions for x in a.arrays)
            yield from (c.array for c in node.carries if c.array is not None)
            yield from _arrays_of(node.body)


def _show_nodes(nodes: tuple[Node, ...], depth: int) -> list[str]:
    pad, lines = "  " * depth, []
    for node in nodes:
        match node:
            case StmtNode():
                lines.append(pad + show_stmt(node.stmt))
            case Reload():
                lines.append(f"{pad}{node.name} = reload {node.scratch.name}")
            case For():
                lines += [f"{pad}begin {_show_accumulator(a)}" for a in node.reductions]
                lines += [f"{pad}carry {_show_carry(c)}" for c in node.carries]
                ahead = "".join(f" prefetch {s.name}[{s.index!r}]" for s in node.prefetch)
                lines.append(f"{pad}for {node.loop!r}{ahead}:")
                lines += _show_nodes(node.body, depth + 1)
                lines += [f"{pad}end {a.reduce.name}" for a in node.reductions]
    return lines


def _show_carry(c: Carry) -> str:
    return c.stmt.name if c.array is None else f"{c.stmt.name} in {c.array.name}"


def _show_accumulator(a: Accumulator) -> str:
    array = "" if a.array is None else f" in {a.array.name}"
    best = "" if a.best is None else f" best {a.best.name}"
    stages = f" stages {','.join(s.name for s in a.stages)}" if a.stages else ""
    return f"{a.reduce.name}{array}{best}{stages}"
