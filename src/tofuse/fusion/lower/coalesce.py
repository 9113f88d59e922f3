"""Kernel -> Kernel: merge axes that are contiguous in every buffer, so inner loops are long."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import known_multiple, product
from tofuse.ir.kernel import CARRIED, Axis, Kernel, Reduce, Scatter, Stmt, Uniform, iteration_axes
from tofuse.ir.statement import StatementMap


def coalesce(kernel: Kernel) -> Kernel:
    """Merge pairs of axes until no pair can be merged."""
    while pair := next((p for p in permutations(kernel.axes, 2) if _mergeable(kernel, *p)), None):
        kernel = _merge(kernel, *pair)
    return kernel


def _mergeable(kernel: Kernel, p: Axis, q: Axis) -> bool:
    """Whether a step along p is a whole extent of q in every index."""
    values, runs = iteration_axes(kernel)
    for axes in (*values.values(), *runs.values()):
        if (p.name in axes) != (q.name in axes):
            return False
    return all(_stmt_mergeable(stmt, p, q) for stmt in kernel.body)


def _stmt_mergeable(stmt: Stmt, p: Axis, q: Axis) -> bool:
    if isinstance(stmt, Uniform):
        return _uniform_mergeable(stmt, p, q)
    if isinstance(stmt, (Reduce, Scatter)) and (p.name in stmt.over) != (q.name in stmt.over):
        return False
    if isinstance(stmt, CARRIED) and stmt.axis in (p.name, q.name):
        return False
    return all(_follows(i, p, q) for i in stmt.indices)


def _follows(index: AffineExpr, p: Axis, q: Axis) -> bool:
    return index.coefficient(p.name) == product((index.coefficient(q.name), q.extent))


def _uniform_mergeable(u: Uniform, p: Axis, q: Axis) -> bool:
    if _follows(u.row, p, q) and _follows(u.col, p, q):
        return True
    # numbers are drawn in groups of 64: rows of whole groups continue each other
    whole = u.col == make_affine([(q.name, 1)]) and u.extent == q.extent
    return whole and u.row == make_affine([(p.name, 1)]) and known_multiple(u.extent, 64)


def _merge(kernel: Kernel, p: Axis, q: Axis) -> Kernel:
    """Replace p and q by one axis, named p: p * extent(q) + q."""
    merged = Axis(p.name, product((p.extent, q.extent)))
    axes = tuple(merged if a is p else a for a in kernel.axes if a is not q)
    return replace(kernel, axes=axes, body=tuple(_rewrite(s, p, q) for s in kernel.body))


def _rewrite(stmt: Stmt, p: Axis, q: Axis) -> Stmt:
    def move(index: AffineExpr) -> AffineExpr:
        step = index.coefficient(q.name)
        rest = [(a, c) for a, c in index.terms if a not in (p.name, q.name)]
        return make_affine([*rest, (p.name, step)], index.const)

    if isinstance(stmt, Uniform) and (stmt.row.axes, stmt.col.axes) == ((p.name,), (q.name,)):
        extent = product((p.extent, q.extent))
        return replace(stmt, row=AffineExpr(), col=make_affine([(p.name, 1)]), extent=extent)
    if isinstance(stmt, (Reduce, Scatter)):
        stmt = replace(stmt, over=tuple(a for a in stmt.over if a != q.name))
    return stmt.map(StatementMap(index=move))
