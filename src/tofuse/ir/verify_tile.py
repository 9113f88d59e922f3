"""Verify that the launches of a tile program compute values before their uses."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.errors import VerifyError
from tofuse.ir.kernel import WRITES, Stmt, show_stmt
from tofuse.ir.tile import TileNest, TileProgram


def verify_tile(program: TileProgram) -> None:
    """Raise VerifyError, with the statement, if it reads what is not computed where it runs."""
    buffers = {b.name for b in program.kernel.buffers} | {w.name for w in program.workspaces}
    for nest in program.nests:
        for b in (b.name for b in nest.kernel.buffers if b.name not in buffers):
            raise VerifyError(f"{b} is neither a buffer of the program nor a workspace")
        _verify_launch(nest)


def _verify_launch(nest: TileNest) -> None:
    values: set[str] = set()
    tiled = {a for t in nest.tiling.tiles for a in t.axes}
    for axis in (a.name for a in nest.kernel.axes if a.name not in tiled):
        raise VerifyError(f"launch {nest.kernel.name} has no tile of {axis}")
    for loop in nest.loops:
        _verify_statements(loop.prologue, values)
        in_loop = set(values)
        _verify_statements(loop.body, in_loop)
        for r in loop.reductions:
            if r not in loop.body:
                raise VerifyError(f"{r.name} is not in the loop that reduces it")
            values.add(r.name)
    reduced = {r.name for loop in nest.loops for r in loop.reductions}
    for name in nest.partials:
        if name not in reduced:
            raise VerifyError(f"no loop of launch {nest.kernel.name} reduces {name}")


def _verify_statements(statements: Sequence[Stmt], values: set[str]) -> None:
    """Verify the uses of statements in order, and add what they define."""
    for s in statements:
        for name in s.uses:
            if name not in values:
                raise VerifyError(f"{name} is not computed before, in '{show_stmt(s)}'")
        if not isinstance(s, WRITES):
            values.add(s.name)
