"""Nest -> Nest: bring rows into the cache that the processor does not foresee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.ir.dims import hint, product
from tofuse.ir.kernel import Compute, Kernel, Load, affine, iteration_axes
from tofuse.ir.nest import (
    Do,
    For,
    Nest,
    Node,
    Phase,
)
from tofuse.ir.schedule import Loop
from tofuse.ops.table import OPS, opdef

LARGE = 1 << 20  # bytes of a tensor that is not in the L2 cache anyway
BUSY = 8.0  # additions per element of a pass that leaves time for fetching, such as an exp
ROW_BYTES = 256 * 1024  # of rows fetched ahead, beside as much of this row: half an L2 cache
SHORT = 512  # bytes of a row that is over before the processor follows it
APART = 64  # bytes between such rows: at least a line
ROWS = 16  # that are under way at once


def with_prefetch(nest: Nest) -> Nest:
    """Let the costliest later pass over a row ask for what the first will read of the next row.

    The first pass waits for memory, and a pass that computes much leaves memory idle. Short rows
    that lie apart are asked for some rows ahead. See docs/measurements.md.
    """
    return replace(nest, phases=tuple(_phase(nest.kernel, p) for p in nest.phases))


def _phase(kernel: Kernel, phase: Phase) -> Phase:
    around = phase.band[-1] if phase.band else None
    return replace(phase, body=_nodes(kernel, phase.body, around))


def _nodes(kernel: Kernel, nodes: Sequence[Node], around: Loop | None) -> tuple[Node, ...]:
    result = [
        replace(n, body=_nodes(kernel, n.body, n.loop)) if isinstance(n, For) else n for n in nodes
    ]
    passes = [n for n in result if isinstance(n, For)]
    if around is not None and not around.strip:
        passes = [replace(n, ahead=_short_rows(kernel, n, around.axis)) for n in passes]
        rest = iter(passes)
        result = [next(rest) if isinstance(n, For) else n for n in result]
    later = [n for n in passes[1:] if n.loop == passes[0].loop]
    if around is None or around.strip or not later:
        return tuple(result)
    busiest = max(later, key=_cost)
    if _cost(busiest) >= BUSY and not busiest.ahead:
        ahead = _ahead(kernel, passes[0], around.axis)
        result[result.index(busiest)] = replace(busiest, ahead=ahead)
    return tuple(result)


def _cost(pass_: For) -> float:
    """Additions per element."""
    stmts = [n.stmt for n in pass_.body if isinstance(n, Do)]
    return sum(opdef(s.op).cost for s in stmts if isinstance(s, Compute) and s.op in OPS)


def _ahead(kernel: Kernel, first: For, axis: str) -> tuple[Load, ...]:
    """What the first pass reads of large tensors, in whole rows, one step of `axis` later."""
    _, runs = iteration_axes(kernel)
    loads = [
        n.stmt
        for n in first.body
        if isinstance(n, Do)
        and isinstance(n.stmt, Load)
        and n.stmt.guard is None
        and n.stmt.index.coefficient(first.loop.axis) == 1
        and n.stmt.index.coefficient(axis) != 0
        and _bytes(kernel, n.stmt, runs[n.stmt]) >= LARGE
    ]
    row = sum(_bytes(kernel, s, frozenset([first.loop.axis])) for s in loads)
    if row > ROW_BYTES:
        return ()
    return tuple(replace(s, index=s.index + affine([], s.index.coefficient(axis))) for s in loads)


def _short_rows(kernel: Kernel, pass_: For, axis: str) -> tuple[Load, ...]:
    """What an innermost loop reads in short rows of large tensors, some rows on along `axis`."""
    if any(isinstance(n, For) for n in pass_.body):
        return pass_.ahead
    _, runs = iteration_axes(kernel)
    along = pass_.loop.axis
    found: list[Load] = []
    for s in (n.stmt for n in pass_.body if isinstance(n, Do)):
        if not isinstance(s, Load) or s.guard is not None or s.index.coefficient(along) != 1:
            continue
        row = _bytes(kernel, s, frozenset([along]))
        step = s.index.coefficient(axis)
        far = hint(step) * _bytes(kernel, s, frozenset()) >= row + APART
        if row <= SHORT and far and _bytes(kernel, s, runs[s]) >= LARGE:
            found.append(replace(s, index=s.index + affine([], step * ROWS)))
    return tuple(found)


def _bytes(kernel: Kernel, s: Load, axes: frozenset[str]) -> int:
    memory = next(b.dtype for b in kernel.buffers if b.name == s.buffer)
    return hint(product([*(kernel.extent(a) for a in sorted(axes)), memory.itemsize]))
