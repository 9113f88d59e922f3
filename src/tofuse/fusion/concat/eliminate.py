"""Graph -> Graph: the pieces of a long cat are written where it lies, so that nothing copies them.

A kernel's result that only owns memory until a cat has copied it need not: it is written into its
part of the cat. What is something else already, as a view, an argument, a result of a library
call or of the program, is copied there by a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.alias import (
    dense_strides,
    is_view,
    piece_place,
    placements,
    view_storage,
)
from tofuse.ir.dims import Dim, hint
from tofuse.ir.graph import Attr, Graph, Names, Op, Value
from tofuse.ir.region import PLACED, Partition, Strided, is_placed
from tofuse.ir.types import DType
from tofuse.ops.result_types import make_op

CAT = "aten.cat.default"
FEW_PIECES = 6  # of a cat that is better in a kernel, even if others compute its pieces
MOST_PIECES = 12  # of a cat in a kernel for the CPU: so many loops without masks replace one
LEAST_RUN = 64  # bytes of a piece that lie next to each other; shorter ones PyTorch copies


def place_pieces(graph: Graph, placing: bool = True) -> Graph:
    """Cats of many pieces are nothing at all after this, where that is allowed and gains; of more
    pieces than a kernel takes they are library calls otherwise."""
    long = [op for op in graph.ops if op.kind == "cat" and len(op.inputs) > FEW_PIECES]
    if not long:
        return graph
    return _Placing(graph, frozenset(long if placing else ())).run()


def place_stored(graph: Graph, part: Partition) -> Graph:
    """Nor is anything left of cats in kernels that read pieces from memory, as others made them:
    of one that is stored if some are, of another if all are.

    `graph` is the partition's, or has some of its ops.
    """
    home = {op: r for r in part.regions if not r.library for op in r.ops}
    makers = part.graph.producers()

    def is_read(v: Value, cat: Op) -> bool:
        op = makers.get(_root(v, makers))
        return op is not None and op in home and home[op] is not home[cat]

    cats = [op for op in home if op.kind == "cat"]
    whole = frozenset(op for op in cats if op.result in home[op].outputs)
    read = {op: [is_read(v, op) for v in op.inputs] for op in cats}
    found = [op for op in cats if (any if op in whole else all)(read[op])]
    return _Placing(graph, frozenset(found), whole).run() if found else graph


def _root(v: Value, makers: Mapping[Value, Op]) -> Value:
    while v in makers and is_view(makers[v]):
        v = makers[v].inputs[0]
    return v


def why_called(op: Op) -> str:
    """Why a library call is not fused with what it reads."""
    if is_placed(op):
        return "written where the cat lies"
    many = op.attr("target") == CAT and len(op.inputs) > FEW_PIECES
    return "a cat of many pieces is a call" if many else "library call"


@dataclass(eq=False)
class _Placing:
    """The pieces of `cats`, of those outside of `whole` only if all of them fit."""

    graph: Graph
    cats: frozenset[Op]
    whole: frozenset[Op] | None = None
    makers: Mapping[Value, Op] = field(default_factory=dict)
    users: Mapping[Value, Sequence[Op]] = field(default_factory=dict)
    returned: set[Value] = field(default_factory=set)
    names: Names = field(init=False)
    taken: set[Value] = field(default_factory=set)  # roots that lie in a cat

    def run(self) -> Graph:
        graph = self.graph
        self.taken = set(placements(graph))
        self.makers, self.users = graph.producers(), graph.users()
        self.returned = {_root(v, self.makers) for v in graph.outputs if v is not None}
        self.names = Names(graph)
        ops: list[Op] = []
        for op in graph.ops:
            placed = self._placed(op) if op in self.cats else None
            ops += placed or [_by_library(op) if _is_too_long(op) else op]
        return graph if ops == list(graph.ops) else replace(graph, ops=tuple(ops))

    def _placed(self, cat: Op) -> list[Op] | None:
        """What is left of it, with copies before of pieces that are elsewhere already."""
        if not _is_placeable(cat):
            return None
        call = _by_library(cat)
        at: Dim = 0
        fit: dict[int, Value] = {}
        for k, piece in enumerate(cat.inputs):
            root, strides, _ = piece_place(piece, call, at, self.makers)
            if root not in self.taken and self._is_free(root, strides):
                fit[k] = root
                self.taken.add(root)
            at = at + piece.shape[cat.int("dim")]
        sizes = [hint(v.type.nbytes) for v in cat.inputs]
        most = self.whole is None or cat in self.whole
        if (2 if most else 1) * sum(sizes[k] for k in fit) < sum(sizes):
            self.taken.difference_update(fit.values())
            return None
        copies = {k: self._copy(v, cat) for k, v in enumerate(cat.inputs) if k not in fit}
        pieces = tuple(copies[k].result if k in copies else v for k, v in enumerate(cat.inputs))
        left = replace(call, operands=pieces, attrs=(*call.attrs, (PLACED, True)))
        return [*copies.values(), left]

    def _is_free(self, root: Value, strides: tuple[Dim, ...]) -> bool:
        """Whether it is a kernel's, for kernels alone if it lies otherwise than by itself."""
        maker = self.makers.get(root)
        if maker is None or maker.kind == "opaque" or is_view(maker):
            return False
        if maker in self.cats or root in self.returned or self._is_shown(root):
            return False
        return _alike(root, strides) or self._is_readable(Strided(root, 0, strides), root)

    def _is_shown(self, v: Value) -> bool:
        """Whether what a library call makes of it is returned: that may be a view of it."""
        seen, work = {v}, [v]
        while work:
            for op in self.users.get(work.pop(), ()):
                if op.kind == "opaque" and not self.returned.isdisjoint(op.results):
                    return True
                if op.kind == "opaque" or is_view(op):
                    work += [r for r in op.results if r not in seen]
                    seen.update(op.results)
        return False

    def _is_readable(self, place: Strided, v: Value) -> bool:
        """Whether no library call reads it, and every view of it has strides."""
        for op in self.users.get(v, ()):
            if op.kind == "opaque":
                return False
            if is_view(op):
                viewed = view_storage(op, place)
                if viewed is None or not self._is_readable(viewed, op.result):
                    return False
        return True

    def _copy(self, v: Value, cat: Op) -> Op:
        name = self.names.fresh(f"{v.name}_placed")
        return make_op("convert", (v,), {"dtype": v.dtype}, name=name, like=cat)


def _is_too_long(op: Op) -> bool:
    """Whether it is a cat of more pieces than a kernel joins."""
    if op.kind != "cat":
        return False
    return len(op.inputs) > (MOST_PIECES if op.result.type.device == "cpu" else FEW_PIECES)


def _by_library(cat: Op) -> Op:
    """PyTorch's own operator in the place of a cat."""
    pieces = ", ".join(f"${k}" for k in range(len(cat.inputs)))
    attrs: dict[str, Attr] = {"target": CAT, "args": f"[{pieces}], {cat.int('dim')}"}
    attrs |= {"shape": cat.result.shape, "dtype": cat.result.dtype, "dim": cat.int("dim")}
    made = make_op("opaque", cat.inputs, attrs, name=cat.result.name, like=cat)
    return replace(made, results=cat.results)


def _is_placeable(cat: Op) -> bool:
    v = cat.result
    here = v.type.device == "cpu" and v.dtype is not DType.OTHER and hint(v.type.numel) > 0
    return here and _alike(v, v.layout) and _is_long(cat)


def _is_long(cat: Op) -> bool:
    """Whether pieces lie whole in the cat, or in runs that are long enough on the average."""
    whole, dim = cat.result.layout, cat.int("dim")
    step = hint(whole[dim])
    if all(hint(s) <= step or n == 1 for s, n in zip(whole, cat.result.shape, strict=True)):
        return True
    run = step * hint(cat.result.shape[dim]) * cat.result.dtype.itemsize
    return run >= LEAST_RUN * len(cat.inputs)


def _alike(root: Value, strides: tuple[Dim, ...]) -> bool:
    """Whether it lies so by itself."""
    own = dense_strides(root)
    return all(a == b or n == 1 for a, b, n in zip(own, strides, root.shape, strict=True))
