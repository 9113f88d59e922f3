"""The guards on a program's symbolic sizes, which a later process checks before it runs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tofuse.torch_internals.private_names import has_attribute

Guards = tuple[sympy.Basic, ...]
_READ = ("guards", "var_to_range", "deferred_runtime_asserts", "evaluate_expr")
_LOST = "programs with symbolic sizes are compiled again in each process"
_IS_READABLE = all([has_attribute(ShapeEnv(), name, _LOST) for name in _READ])


class SizeGuards:
    """The symbols of a program's arguments, and the guards on them.

    Tracing decides by what the guards say, and adds guards for what it finds out. A trace is
    right in another process that has the same `facts` and accepts the same `guards`.
    """

    def __init__(self, numbers: Iterable[object]) -> None:
        """`numbers` are the symbolic arguments, and the floats that tensors hold."""
        symbolic = [
            x
            for x in numbers
            if isinstance(x, (torch.SymInt, torch.SymFloat)) and isinstance(x.node, SymNode)
        ]
        envs = {id(x.node.shape_env): x.node.shape_env for x in symbolic}
        self._has_symbols, self._envs = bool(envs), list(envs.values()) if _IS_READABLE else []
        self._hints = {
            x.node.expr: x.node.hint
            for x in symbolic
            if isinstance(x, torch.SymInt) and isinstance(x.node.expr, sympy.Symbol)
        }
        self._other = self._guards_on_others()

    @property
    def facts(self) -> list[str] | None:
        """The symbols of sizes with their ranges, and the guards on floats, as text.

        None if a size depends on data.
        """
        if not self._are_known:
            return None
        ranges = [
            f"{sympy.srepr(s)} {env.var_to_range.get(s)}" for env in self._envs for s in self._hints
        ]
        return [*ranges, *sorted(map(sympy.srepr, self._other))]

    @property
    def _are_known(self) -> bool:
        if any(env.deferred_runtime_asserts for env in self._envs):
            return False
        return bool(self._envs) == self._has_symbols and None not in self._hints.values()

    def _guards_on_others(self) -> Set[sympy.Basic]:
        """Return the guards that are not on sizes alone."""
        guards = [guard.expr for env in self._envs for guard in env.guards]
        return {expr for expr in guards if not expr.free_symbols <= self.symbols}

    def covers(self, size: object) -> bool:
        """Return whether each symbol of a size is an argument of the program."""
        if isinstance(size, torch.SymInt) and isinstance(size.node, SymNode):
            return bool(size.node.expr.free_symbols <= self.symbols)
        return isinstance(size, int)

    @property
    def symbols(self) -> Set[sympy.Symbol]:
        """The symbols that are arguments themselves."""
        return self._hints.keys()

    def guards(self) -> Guards | None:
        """Return all guards on sizes; None if tracing has added one on something else."""
        if self._guards_on_others() != self._other or not self._are_known:
            return None
        found = [guard.expr for env in self._envs for guard in env.guards]
        return tuple(expr for expr in found if expr.free_symbols <= self.symbols)

    def accept(self, guards: Sequence[sympy.Basic]) -> bool:
        """Return whether all guards hold for the sizes of this call. If they do, add them."""
        hints = {s: sympy.Integer(hint) for s, hint in self._hints.items()}
        if not all(guard.xreplace(hints) == sympy.true for guard in guards):
            return False
        for guard in guards:
            self._envs[0].evaluate_expr(guard)
        return True
