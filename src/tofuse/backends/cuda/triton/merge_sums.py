"""Order the statements of a loop so that independent sums over the same axes are one reduction.

A reduction of a tile exchanges numbers between warps behind barriers; two at once need as many as
one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Union

from tofuse.cost.thresholds import MAX_MERGED_SUMS
from tofuse.ir.kernel import WRITES, Reduce, Stmt

MergedReductions = tuple[Reduce, ...]  # one, or sums over the same axes
Step = Union[Stmt, MergedReductions]  # noqa: UP007  (evaluated at run time)


def merge_sums(statements: Iterable[Stmt], key: Callable[[Reduce], Hashable | None]) -> list[Step]:
    """Return the statements in an order of their dependencies, with equal-keyed sums together.

    A reduction with the key None stays by itself, wherever its operand is defined.
    """
    depth: dict[str, int] = {}  # reductions on the longest chain that leads to a value
    levels: dict[int, tuple[list[Step], dict[Hashable, list[Reduce]]]] = {}
    for s in statements:
        level = max((depth.get(u, 0) for u in s.uses), default=0)
        others, sums = levels.setdefault(level, ([], {}))
        group = key(s) if isinstance(s, Reduce) else None
        if isinstance(s, Reduce) and group is not None:
            sums.setdefault(group, []).append(s)
            depth[s.name] = level + 1
            continue
        others.append((s,) if isinstance(s, Reduce) else s)
        if not isinstance(s, WRITES):
            depth[s.name] = level
    steps: list[Step] = []
    for level in sorted(levels):
        others, sums = levels[level]
        steps += others
        for merged in sums.values():
            steps += [
                tuple(merged[k : k + MAX_MERGED_SUMS])
                for k in range(0, len(merged), MAX_MERGED_SUMS)
            ]
    return steps
