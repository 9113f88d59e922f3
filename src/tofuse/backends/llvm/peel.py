"""Rows that begin inside a cache line: a few elements first, then whole vectors past the caches.

Only loops without sums are begun like that: a row's sum must not depend on where the row lies.
"""

from __future__ import annotations

from tofuse.backends.llvm.registers import Frame
from tofuse.ir.dims import Dim, known_multiple
from tofuse.ir.kernel import Affine, Reduce, Store, Uniform
from tofuse.ir.nest import Do, For

LEAST = 4  # groups of vectors in a loop for which the code of a beginning pays


def to_align(frame: Frame, node: For, extent: Dim | None) -> tuple[Store, ...]:
    """The streamed stores of a vector loop that begin vectors together once the first does.

    None where all are known to begin them, and where the loop must not be cut elsewhere.
    """
    schedule, axis = frame.nest.schedule, node.loop.axis
    if isinstance(extent, int) and extent < LEAST * schedule.vector * schedule.unroll:
        return ()
    stmts = [n.stmt for n in node.body if isinstance(n, Do)]
    if any(isinstance(s, (Reduce, Uniform)) for s in stmts):
        return ()
    stores = [s for s in stmts if isinstance(s, Store) and s.buffer in frame.streams]
    stores = [s for s in stores if s.index.coefficient(axis) == 1]
    loose = [s for s in stores if not is_aligned(frame, s.index, axis)]
    if not loose:
        return ()
    first, lanes = loose[0], schedule.vector
    return (first, *(s for s in stores if s is not first and _alike(s.index, first.index, lanes)))


def is_aligned(frame: Frame, index: Affine, axis: str) -> bool:
    """Whether every whole vector along the axis begins at a multiple of its own size."""
    others = [c for a, c in index.terms if a != axis]
    strips = [lp.strip for lp in frame.nest.schedule.loops if lp.axis == axis]
    lanes = frame.nest.schedule.vector
    return all(known_multiple(c, lanes) for c in (*others, index.const, *strips))


def elements_before(frame: Frame, store: Store, count: str) -> str:
    """How many of `count` elements lie before the first whole vector; the axis is at its begin."""
    f, lanes = frame.f, frame.nest.schedule.vector
    past = f.let(f"sub i64 0, {frame.affine(store.index)}")
    before = f.let(f"and i64 {past}, {lanes - 1}")
    fewer = f.let(f"icmp slt i64 {before}, {count}")
    return f.let(f"select i1 {fewer}, i64 {before}, i64 {count}")


def _alike(one: Affine, other: Affine, lanes: int) -> bool:
    """Whether two indices differ by whole vectors everywhere."""
    apart = one + other * -1
    return all(known_multiple(c, lanes) for c in (apart.const, *(c for _, c in apart.terms)))
