"""What a kernel spends on values that it computes more than once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from tofuse.analysis.reachability import reachable
from tofuse.ir.dims import size_hint
from tofuse.ir.kernel import (
    Compute,
    Gather,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
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
    definitions: dict[str, Stmt] = {s.name: s for s in kernel.body if not isinstance(s, Store)}
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


def _total_ns(statements: Statements) -> float:
    return max(1e-9, sum(ns for _, _, ns in statements))


def _points(kernel: Kernel, axes: Iterable[str]) -> int:
    return math.prod(size_hint(kernel.extent(a)) for a in axes)
