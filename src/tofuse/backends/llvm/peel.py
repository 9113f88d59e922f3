"""Loop peeling: start each row with a few elements, so that nontemporal stores are aligned.

Loops with reductions are not peeled: the result must not depend on the row's address.
"""

from __future__ import annotations

from tofuse.backends.llvm.function_emitter import FunctionEmitter
from tofuse.cost.thresholds import MIN_PEELED_GROUPS
from tofuse.ir.dims import known_multiple
from tofuse.ir.kernel import AffineExpr, Reduce, Store, Uniform
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
    if any(isinstance(s, (Reduce, Uniform)) for s in stmts):
        return ()
    stores = [s for s in stmts if isinstance(s, Store) and s.buffer in emitter.nontemporal_buffers]
    stores = [s for s in stores if s.index.coefficient(axis) == 1]
    loose = [s for s in stores if not is_aligned(emitter, s.index, axis)]
    if not loose:
        return ()
    first, lanes = loose[0], schedule.vector
    return (
        first,
        *(s for s in stores if s is not first and _same_alignment(s.index, first.index, lanes)),
    )


def is_aligned(emitter: FunctionEmitter, index: AffineExpr, axis: str) -> bool:
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


def _same_alignment(first: AffineExpr, second: AffineExpr, lanes: int) -> bool:
    """Return whether two indices always differ by whole vectors."""
    difference = first + second * -1
    return all(
        known_multiple(c, lanes) for c in (difference.const, *(c for _, c in difference.terms))
    )
