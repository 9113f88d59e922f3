"""Nest -> Nest: prefetch rows that the hardware prefetcher does not predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.cost.machine import CACHE_LINE
from tofuse.cost.thresholds import (
    MAX_ROW_BYTES_KEPT_BETWEEN_PASSES,
    MIN_PASS_COST,
    MIN_PREFETCHED_ROW_BYTES,
    MIN_PREFETCHED_TENSOR_BYTES,
    ROWS_AHEAD,
    SHORT_ROW_BYTES,
)
from tofuse.ir.affine import make_affine
from tofuse.ir.dims import product, size_hint
from tofuse.ir.kernel import Compute, Kernel, Load, Reduce, iteration_axes
from tofuse.ir.nest import For, Nest, Node, StmtNode
from tofuse.ir.schedule import Loop
from tofuse.ops.table import OPS


def prefetch(nest: Nest) -> Nest:
    """Prefetch the loads of a row's first pass for the next row in its most expensive later pass.

    The first pass is memory-bound, and an expensive pass leaves memory idle. Short rows with gaps
    between them are prefetched `ROWS_AHEAD` rows ahead, and long rows of bytes one row ahead: they
    use few cache lines for a vector, so the hardware prefetcher starts too late. See
    docs/measurements.md.
    """
    phases = (replace(p, body=_prefetch_nodes(nest.kernel, p.body, p.band)) for p in nest.phases)
    return replace(nest, phases=tuple(phases))


def _prefetch_nodes(
    kernel: Kernel, nodes: Sequence[Node], around: tuple[Loop, ...], reduces: bool = False
) -> tuple[Node, ...]:
    """Return nodes inside the loops `around` with prefetches.

    `reduces`: one of these loops adds up a reduction.
    """
    outer = around[-1] if around else None
    result = [
        replace(
            n,
            body=_prefetch_nodes(kernel, n.body, (*around, n.loop), reduces or bool(n.reductions)),
        )
        if isinstance(n, For)
        else n
        for n in nodes
    ]
    passes = [n for n in result if isinstance(n, For)]
    if outer is not None and not outer.strip:
        passes = [
            replace(n, prefetch=_row_loads(kernel, n, around, reduces or bool(n.reductions)))
            for n in passes
        ]
        rest = iter(passes)
        result = [next(rest) if isinstance(n, For) else n for n in result]
    later_passes = [n for n in passes[1:] if n.loop == passes[0].loop]
    if outer is None or outer.strip or not later_passes:
        return tuple(result)
    busiest = max(later_passes, key=_pass_cost)
    if _pass_cost(busiest) >= MIN_PASS_COST and not busiest.prefetch:
        loads = _next_row_loads(kernel, passes[0], outer.axis)
        result[result.index(busiest)] = replace(busiest, prefetch=loads)
    return tuple(result)


def _pass_cost(pass_: For) -> float:
    """Return the additions per element."""
    stmts = [n.stmt for n in pass_.body if isinstance(n, StmtNode)]
    return sum(OPS[s.op].cost for s in stmts if isinstance(s, Compute) and s.op in OPS)


def _next_row_loads(kernel: Kernel, first: For, axis: str) -> tuple[Load, ...]:
    """Return the first pass's contiguous loads of large tensors, one step of `axis` later."""
    loads = [s for s in _large_loads(kernel, first) if s.index.coefficient(axis) != 0]
    row_bytes = sum(_bytes(kernel, s, frozenset([first.loop.axis])) for s in loads)
    if row_bytes > MAX_ROW_BYTES_KEPT_BETWEEN_PASSES:
        return ()
    return tuple(
        replace(s, index=s.index + make_affine([], s.index.coefficient(axis))) for s in loads
    )


def _row_loads(
    kernel: Kernel, pass_: For, around: tuple[Loop, ...], reduces: bool
) -> tuple[Load, ...]:
    """Return an innermost loop's loads of later rows: short ones, and long ones of bytes."""
    if any(isinstance(n, For) for n in pass_.body):
        return pass_.prefetch
    found: list[Load] = []
    for s in _large_loads(kernel, pass_):
        row_bytes = _bytes(kernel, s, frozenset([pass_.loop.axis]))
        step = s.index.coefficient(around[-1].axis)
        itemsize = _bytes(kernel, s, frozenset())
        has_gap = size_hint(step) * itemsize >= row_bytes + CACHE_LINE
        if row_bytes <= SHORT_ROW_BYTES and has_gap:
            found.append(replace(s, index=s.index + make_affine([], step * ROWS_AHEAD)))
        elif reduces and itemsize == 1:
            row, outside = _contiguous_row(kernel, s, pass_, around)
            own = [lp for lp in outside if not lp.strip and s.index.coefficient(lp.axis) != 0]
            steps = [s.index.coefficient(lp.axis) * lp.jam for lp in own[-1:]]
            if row >= MIN_PREFETCHED_ROW_BYTES:
                found += (replace(s, index=s.index + make_affine([], step)) for step in steps)
    # loads of the same elements are prefetched once
    return tuple({(s.buffer, s.index): s for s in reversed(found)}.values())


def _contiguous_row(
    kernel: Kernel, s: Load, pass_: For, around: tuple[Loop, ...]
) -> tuple[int, tuple[Loop, ...]]:
    """Return how many elements a reduction reads one after another, and the loops around it."""
    reduced = {a for r in kernel.body if isinstance(r, Reduce) for a in r.over}
    elements = size_hint(kernel.extent(pass_.loop.axis))
    while around and around[-1].axis in reduced and not around[-1].strip:
        if s.index.coefficient(around[-1].axis) != elements:
            break
        elements *= size_hint(kernel.extent(around[-1].axis))
        around = around[:-1]
    return elements, around


def _large_loads(kernel: Kernel, pass_: For) -> list[Load]:
    """Return a pass's unguarded loads of large tensors that are contiguous along its loop."""
    _, stmt_axes = iteration_axes(kernel)
    loads = [n.stmt for n in pass_.body if isinstance(n, StmtNode) and isinstance(n.stmt, Load)]
    return [
        s
        for s in loads
        if s.guard is None
        and s.index.coefficient(pass_.loop.axis) == 1
        and _bytes(kernel, s, stmt_axes[s]) >= MIN_PREFETCHED_TENSOR_BYTES
    ]


def _bytes(kernel: Kernel, s: Load, axes: frozenset[str]) -> int:
    """Estimate the bytes that a load reads over `axes`."""
    dtype = next(b.dtype for b in kernel.buffers if b.name == s.buffer)
    return size_hint(product([*(kernel.extent(a) for a in sorted(axes)), dtype.itemsize]))
