"""Kernel -> Kernel: axes that are adjacent in every buffer become one, so inner loops are long."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.dims import known_multiple, product
from tofuse.ir.kernel import (
    Affine,
    Axis,
    Compute,
    Kernel,
    Reduce,
    Stmt,
    Uniform,
    affine,
    iteration_axes,
)


def coalesce(kernel: Kernel) -> Kernel:
    """Merge pairs of axes until none is left that could be."""
    found = True
    while found:
        found = False
        for p in kernel.axes:
            for q in kernel.axes:
                if p is not q and _mergeable(kernel, p, q):
                    kernel, found = _merge(kernel, p, q), True
                    break
            if found:
                break
    return kernel


def _mergeable(kernel: Kernel, p: Axis, q: Axis) -> bool:
    """Whether p steps over exactly q's extent, everywhere."""
    values, runs = iteration_axes(kernel)
    for axes in (*values.values(), *runs.values()):
        if (p.name in axes) != (q.name in axes):
            return False
    return all(_stmt_mergeable(stmt, p, q) for stmt in kernel.body)


def _stmt_mergeable(stmt: Stmt, p: Axis, q: Axis) -> bool:
    if isinstance(stmt, Uniform):
        return _uniform_mergeable(stmt, p, q)
    if isinstance(stmt, Reduce) and (p.name in stmt.over) != (q.name in stmt.over):
        return False
    return all(_follows(i, p, q) for i in _indices(stmt))


def _follows(index: Affine, p: Axis, q: Axis) -> bool:
    return index.coefficient(p.name) == product((index.coefficient(q.name), q.extent))


def _uniform_mergeable(u: Uniform, p: Axis, q: Axis) -> bool:
    if _follows(u.row, p, q) and _follows(u.col, p, q):
        return True
    # row-major numbering runs on over the rows where rows fill whole groups of 64
    whole = u.col == affine([(q.name, 1)]) and u.extent == q.extent
    return whole and u.row == affine([(p.name, 1)]) and known_multiple(u.extent, 64)


def _indices(stmt: Stmt) -> list[Affine]:
    match stmt:
        case Compute():
            return []
        case Reduce():
            return [] if stmt.position is None else [stmt.position]
        case Uniform():
            return [stmt.row, stmt.col]
        case _:
            return [stmt.index]


def _merge(kernel: Kernel, p: Axis, q: Axis) -> Kernel:
    """p takes over q: i = p * extent(q) + q."""
    merged = Axis(p.name, product((p.extent, q.extent)))
    axes = tuple(merged if a is p else a for a in kernel.axes if a is not q)
    return replace(kernel, axes=axes, body=tuple(_rewrite(s, p, q) for s in kernel.body))


def _rewrite(stmt: Stmt, p: Axis, q: Axis) -> Stmt:
    def move(index: Affine) -> Affine:
        step = index.coefficient(q.name)
        rest = [(a, c) for a, c in index.terms if a not in (p.name, q.name)]
        return affine([*rest, (p.name, step)], index.const)

    match stmt:
        case Compute():
            return stmt
        case Reduce():
            over = tuple(a for a in stmt.over if a != q.name)
            position = None if stmt.position is None else move(stmt.position)
            return replace(stmt, over=over, position=position)
        case Uniform():
            if stmt.row.axes == (p.name,) and stmt.col.axes == (q.name,):
                extent = product((p.extent, q.extent))
                return replace(stmt, row=Affine(), col=affine([(p.name, 1)]), extent=extent)
            return replace(stmt, row=move(stmt.row), col=move(stmt.col))
        case _:
            return replace(stmt, index=move(stmt.index))
