"""What a kernel spends on values that it computes more than once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tofuse.analysis.reachability import reachable
from tofuse.backends.cpu.cost.shifted_values import shifted_copies
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import (
    WRITES,
    Compute,
    Gather,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Uniform,
    iteration_axes,
)

Statements: TypeAlias = Sequence[tuple[Stmt, float, float]]


class Recomputation(NamedTuple):
    """The costs of values that are computed more than once.

    - `repeated_ns`: of one thread on the repetitions;
    - `nbytes`: to store and load the values instead;
    - `needed`: the fraction of all work that remains without repetitions.
    """

    repeated_ns: float
    nbytes: float
    needed: float


def recomputation_by_loops(kernel: Kernel, statements: Statements) -> Recomputation:
    """Return the costs of values that loops around them compute again in each iteration.

    `statements` are those of the nest, each with its number of iterations and its ns. A later
    loop over the same row that recomputes a value is no repetition: it avoids a row in memory.
    """
    repeated = nbytes = needed = 0.0
    _, domains = iteration_axes(kernel)
    points = {s: _points(kernel, domains[s]) for s in kernel.body}
    max_reads: dict[str, int] = {}  # of each value, without repetitions
    for s, name in ((x, n) for x in kernel.body for n in x.uses):
        max_reads[name] = max(max_reads.get(name, 0), points[s])
    for s, executed, ns in statements:
        once = max_reads.get(s.name, 0) if isinstance(s, (Load, Gather)) else points[s]
        fraction = min(1.0, once / max(1.0, executed))
        needed += ns * fraction
        if fraction < 1 and isinstance(s, (Compute, Uniform)):
            repeated += ns * (1 - fraction)
            nbytes += 2.0 * points[s] * s.dtype.itemsize
    return Recomputation(repeated, nbytes, needed / _total_ns(statements))


def recomputation_of_sums(kernel: Kernel, statements: Statements) -> Recomputation:
    """Return the costs of reductions that later loops compute again, with all that they reduce."""
    repeated = nbytes = 0.0
    values, domains = iteration_axes(kernel)
    counts = Counter(s for s, _, _ in statements)
    again = [s for s, count in counts.items() if isinstance(s, Reduce) and count > 1]
    definitions: dict[str, Stmt] = {s.name: s for s in kernel.body if not isinstance(s, WRITES)}
    times: dict[Stmt, int] = {}

    def operands(s: Stmt) -> list[Stmt]:
        return [definitions[name] for name in s.uses]

    for r in again:
        nbytes += 2.0 * _points(kernel, values[r.name]) * r.dtype.itemsize
        roots: list[Stmt] = [r]
        for d in reachable(roots, operands):
            if domains[d] >= set(r.over):
                times[d] = max(times.get(d, 1), counts[r])
    for s, _, ns in statements:
        repeated += ns * (1 - 1 / times.get(s, 1))
    return Recomputation(repeated, nbytes, 1 - repeated / _total_ns(statements))


def recomputation_by_shifts(kernel: Kernel, statements: Statements) -> Recomputation:
    """Return the costs of values that are computed at several neighbouring places.

    Where a value is computed more often than what reads it, it is stored and loaded instead.
    """
    groups = shifted_copies(kernel)
    group_of = {s.name: group for group in groups for s in group}
    stored = {
        name
        for user in kernel.body
        for name in user.uses
        if name in group_of and len(group_of[name]) > _copies(user, group_of)
    }
    if not stored:
        return Recomputation(0.0, 0.0, 1.0)
    needed, nbytes = set[Stmt](), 0.0
    _, domains = iteration_axes(kernel)
    work: list[Stmt] = [s for s in kernel.body if isinstance(s, WRITES)]
    while work:
        s = work.pop()
        if s in needed:
            continue
        needed.add(s)
        for name in s.uses:
            first = kernel.definitions[name]
            if name in stored:
                first = group_of[name][0]
                if first not in needed:
                    nbytes += 2.0 * _points(kernel, domains[first]) * first.dtype.itemsize
            work.append(first)
    repeated = sum(ns for s, _, ns in statements if s not in needed)
    return Recomputation(repeated, nbytes, 1 - repeated / _total_ns(statements))


def _copies(s: Stmt, group_of: Mapping[str, Sequence[Stmt]]) -> int:
    """Return how many statements compute what `s` does."""
    return 1 if isinstance(s, WRITES) else len(group_of.get(s.name, (s,)))


def _total_ns(statements: Statements) -> float:
    return max(1e-9, sum(ns for _, _, ns in statements))


def _points(kernel: Kernel, axes: Iterable[str]) -> int:
    return math.prod(size_hint(kernel.extent(a)) for a in axes)
