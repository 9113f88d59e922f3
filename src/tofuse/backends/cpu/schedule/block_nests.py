"""The nests of blocks: a part of a kernel over a part of its axes, which one thread runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tofuse.ir.affine import AffineExpr
from tofuse.ir.blocked import first_index, iterations
from tofuse.ir.dims import Dim, symbol
from tofuse.ir.kernel import Axis, Buffer, Kernel, Stmt, buffers_of
from tofuse.ir.nest import Nest
from tofuse.ir.rules import Rule
from tofuse.ir.statement import StatementMap
from tofuse.schedule.schedule_legality import Unschedulable

BuildNest = Callable[[Kernel], Nest]  # the nest of a block, for one thread


def block_nest(
    kernel: Kernel,
    name: str,
    stmts: Sequence[Stmt],
    counted: Mapping[str, int],
    whole: Sequence[str],
    local: Sequence[Buffer],
    build_nest: BuildNest,
) -> Nest:
    """Return the nest of a block; raise Unschedulable if it is no single nest.

    The block has some iterations of each of the axes `counted`, for which this gives size hints,
    all iterations of each of the axes `whole`, and one iteration of each other axis. Buffers are
    indexed from their start, those of `local` from the start of the block.
    """
    own = {b.name for b in local}
    origins = {a: symbol(first_index(a), 0) for a in kernel.extents if a not in whole}
    counts = {a: symbol(iterations(a), hint) for a, hint in counted.items()}
    extents: dict[str, Dim] = {**{a: kernel.extent(a) for a in whole}, **counts}

    def from_origin(index: AffineExpr) -> AffineExpr:
        moved: Dim = index.const
        for axis, c in index.terms:
            moved = c * origins[axis] + moved if axis in origins else moved
        return AffineExpr(tuple((a, c) for a, c in index.terms if a in extents), moved)

    to_block = StatementMap(index=from_origin)
    used = {b for s in stmts for b in buffers_of(s)}
    block = Kernel(
        f"{kernel.name}.{name}",
        tuple(Axis(a, extents[a]) for a in kernel.extents if a in extents),
        (*(b for b in kernel.buffers if b.name in used), *local),
        (*kernel.symbols, *map(first_index, origins), *map(iterations, counts)),
        tuple(s if own.intersection(buffers_of(s)) else s.map(to_block) for s in stmts),
    )
    nest = build_nest(block)
    if len(nest.phases) != 1 or nest.phases[0].partials:
        raise Unschedulable(Rule.DIFFERENT_LOOPS())
    return nest
