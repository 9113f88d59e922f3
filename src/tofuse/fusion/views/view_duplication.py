"""Graph -> Graph: views of their own for operands whose axes one view would tie together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tofuse.fusion.lower.align import align
from tofuse.fusion.lower.axes import Misaligned
from tofuse.ir.graph import Graph, Names, Op, Value, substitute
from tofuse.ir.region import Strided


def own_ranges(graph: Graph) -> Graph:
    """A range that is laid along several dimensions is as many ranges, which cost nothing: views of
    one along rows and columns would tie these together, however far apart they are read."""
    makers = graph.producers()
    names = Names(graph)
    along: dict[Value, dict[object, Value]] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if op.kind == "broadcast" and makers.get(v := op.inputs[0], op).kind == "iota":
            ranges = along.setdefault(v, {})
            if not ranges:
                ranges[op.attr("dims")] = v
            if op.attr("dims") not in ranges:
                ops += _again((makers[v],), names)
                ranges[op.attr("dims")] = ops[-1].result
            op = replace(op, operands=(ranges[op.attr("dims")],))
        ops.append(op)
    return replace(graph, ops=tuple(ops)) if len(ops) > len(graph.ops) else graph


def own_views(graph: Graph, storage: Mapping[Value, Strided]) -> Graph:
    """No op reads a view that no strides express along two of its dimensions at once.

    In `y[:, None] - y[:, :, None]` both operands have the axes of `y` if that is such a view; of
    two views equal to `y` each has its own.
    """
    makers = graph.producers()
    names = Names(graph)
    own: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        chains = {v: _unplaced(v, makers, storage) for v in op.inputs}
        seen: set[Op] = set()
        for v, chain in chains.items():
            if v not in own and seen & set(chain) and not _aligned(op, chains, storage):
                again = _again(chain, names)
                ops += again
                own[v] = again[-1].result
            seen |= set(chain)
        moved = own.keys() & chains
        ops.append(replace(op, operands=substitute(op.operands, own)) if moved else op)
    return replace(graph, ops=tuple(ops)) if own else graph


def _unplaced(
    v: Value, makers: Mapping[Value, Op], storage: Mapping[Value, Strided]
) -> tuple[Op, ...]:
    """The views that lead to a value from one that has strides, in this order."""
    chain: list[Op] = []
    while v not in storage:
        chain.append(makers[v])
        v = chain[-1].inputs[0]
    return tuple(reversed(chain))


def _aligned(
    op: Op, chains: Mapping[Value, Sequence[Op]], storage: Mapping[Value, Strided]
) -> bool:
    """Whether an op and the views before it have common axes, no two of a value the same."""
    views = dict.fromkeys(view for chain in chains.values() for view in chain)
    try:
        align([*views, op], storage)
    except Misaligned:
        return False
    return True


def _again(chain: Sequence[Op], names: Names) -> list[Op]:
    """The same views once more, under other names."""
    made: list[Op] = []
    new: dict[Value, Value] = {}
    for op in chain:
        result = replace(op.result, name=names.fresh(f"{op.result.name}_own"))
        made.append(replace(op, operands=substitute(op.operands, new), results=(result,)))
        new[op.result] = result
    return made
