"""Verify that the statements of a nest are in the loops, reductions and keys that they need."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.errors import VerifyError
from tofuse.ir.kernel import CARRIED, WRITES, Next, Reduce, Scatter, Stmt, Uniform, show_stmt
from tofuse.ir.nest import For, Nest, Node, Reload, StmtNode

Names = frozenset[str]


def verify_nest(nest: Nest) -> None:
    """Raise VerifyError, with the statement, if it reads what is not computed where it runs.

    Its axes must be those of loops around it. A reduction must begin before one of these, and a
    loop must carry what it carries.
    """
    for phase in nest.phases:
        values: set[str] = set()
        _verify_nodes(nest, phase.prologue, frozenset(), frozenset(), values)
        partials = frozenset(a.reduce.name for a in phase.partials)
        _verify_nodes(nest, phase.body, frozenset(lp.axis for lp in phase.band), partials, values)


def _verify_nodes(
    nest: Nest, nodes: Sequence[Node], axes: Names, begun: Names, values: set[str]
) -> None:
    """Verify nodes inside loops over `axes`, and add the values that they compute."""
    for node in nodes:
        match node:
            case Reload():
                values.add(node.name)
            case StmtNode():
                _verify_statement(nest, node.stmt, axes, begun, values)
                if not isinstance(node.stmt, (*WRITES, Reduce)):
                    values.add(node.stmt.name)
            case For():
                own = frozenset(a.reduce.name for a in node.reductions)
                inside = axes | {node.loop.axis}
                carried = frozenset(c.stmt.name for c in node.carries)
                _verify_nodes(nest, node.body, inside, begun | own | carried, set(values))
                values |= own


def _verify_statement(nest: Nest, s: Stmt, axes: Names, begun: Names, values: set[str]) -> None:
    where = f"in '{show_stmt(s)}'"
    for name in s.uses:
        if name not in values:
            raise VerifyError(f"{name} is neither computed nor reloaded before, {where}")
    over = (
        s.over if isinstance(s, (Reduce, Scatter)) else (s.axis,) if isinstance(s, CARRIED) else ()
    )
    for axis in (*(a for i in s.indices for a in i.axes), *over):
        if axis not in axes:
            raise VerifyError(f"there is no loop over {axis} around, {where}")
    if isinstance(s, Reduce) and s.name not in begun:
        raise VerifyError(f"there is no 'begin {s.name}' before, {where}")
    carried = s.previous if isinstance(s, Next) else s.name if isinstance(s, CARRIED) else None
    if carried is not None and carried not in begun:
        raise VerifyError(f"there is no 'carry {carried}' before, {where}")
    if isinstance(s, Uniform) and s.seed not in nest.philox_keys:
        raise VerifyError(f"there is no scratch array of the keys of {s.seed}, {where}")
