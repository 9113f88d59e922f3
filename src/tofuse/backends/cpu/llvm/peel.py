"""Loop peeling: start each row with a few elements, so that nontemporal stores are aligned.

Loops with reductions are not peeled: the result must not depend on the row's address.
"""

from __future__ import annotations

from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.cost.thresholds import MIN_PEELED_GROUPS
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import known_multiple
from tofuse.ir.kernel import CARRIED, Reduce, Store, Uniform
from tofuse.ir.nest import For, StmtNode


def stores_to_align(emitter: FunctionEmitter, node: For, known: int | None) -> tuple[Store, ...]:
    """Return the nontemporal stores of a vector loop that are aligned once the first is.

    `known` is the number of iterations if it is static. Return none if all are known to be aligned,
    or if the loop must not be peeled.
    """
    schedule, axis = emitter.nest.schedule, node.loop.axis
    if known is not None and known < MIN_PEELED_GROUPS * schedule.vector * schedule.unroll:
        return ()
    stmts = [n.stmt for n in node.body if isinstance(n, StmtNode)]
    if any(isinstance(s, (Reduce, *CARRIED, Uniform)) for s in stmts):
        return ()
    stores = [s for s in stmts if isinstance(s, Store) and s.buffer in emitter.nontemporal_buffers]
    for first in stores:
        if first.index.coefficient(axis) == 1 and not _is_aligned(emitter, first.index, axis):
            others = (s for s in stores if s is not first)
            return (first, *(s for s in others if _follows(s, first, axis, schedule.vector)))
    return ()


def is_nontemporal(emitter: FunctionEmitter, s: Store) -> bool:
    """Return whether the whole vectors of a store bypass the caches."""
    axis = emitter.vector_axis
    if axis is None or s.buffer not in emitter.nontemporal_buffers:
        return False
    if emitter.aligned_stores:  # the loop is peeled for these
        return s in emitter.aligned_stores
    return _is_aligned(emitter, s.index, axis)


def _is_aligned(emitter: FunctionEmitter, index: AffineExpr, axis: str) -> bool:
    """Return whether every whole vector along the axis starts at a multiple of its size."""
    others = [c for a, c in index.terms if a != axis]
    strips = [lp.strip for lp in emitter.nest.schedule.loops if lp.axis == axis]
    lanes = emitter.nest.schedule.vector
    return all(known_multiple(c, lanes) for c in (*others, index.const, *strips))


def peel_count(emitter: FunctionEmitter, store: Store, count: str) -> str:
    """Return how many of `count` elements precede the first aligned vector of a row."""
    f, lanes = emitter.f, emitter.nest.schedule.vector
    past = f.let(f"sub i64 0, {emitter.affine(store.index)}")
    before = f.let(f"and i64 {past}, {lanes - 1}")
    fewer = f.let(f"icmp slt i64 {before}, {count}")
    return f.let(f"select i1 {fewer}, i64 {before}, i64 {count}")


def _follows(s: Store, first: Store, axis: str, lanes: int) -> bool:
    """Return whether the vectors of a store are aligned wherever those of another are."""
    difference = s.index + first.index * s.index.coefficient(axis) * -1
    steps = [c for _, c in difference.terms]
    return all(known_multiple(c, lanes) for c in (difference.const, *steps))
