"""Branches that do the same to pieces of one tensor are one program for all of the pieces.

`torch.stack([f(x[:, k]) for k in range(16)])` calls what is in `f` 16 times, and PyTorch follows
every call, forward and backward. Kernels of ours take in such branches, but products of matrices
and convolutions stay as many. Here such branches become one `f` under `vmap` before autograd sees
the program, so that its backward is one as well.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch._C import _functorch as functorch
from torch._functorch import predispatch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument, Target, map_arg

from tofuse.capture.fx.mutation import written
from tofuse.capture.fx.node_tensors import memory, name_of, nbytes, tensor_of
from tofuse.capture.pre_autograd.slice_match import Pieces, pieces_of
from tofuse.hints import KEY, stands_for

BESIDE = "{count} branches, each of {calls} on its piece of a tensor, are computed side by side"
FEWEST = 8  # branches without a library's calls, which kernels take in one by one as well
COPY = 100_000  # bytes that are copied in the time of a library's small call
SPARE = 1 << 20  # bytes that may be held beside what eager holds
JOINS = {torch.stack: 1, torch.cat: 0, torch.concat: 0, torch.concatenate: 0}  # dimensions added
_PRODUCTS = "linear matmul mm bmm addmm baddbmm einsum conv1d conv2d conv3d __matmul__ bilinear"
PRODUCTS = frozenset(_PRODUCTS.split())
# Functions and methods that vmap computes for all pieces as for each, without random numbers.
_PURE = """
abs absolute acos acosh add addcdiv addcmul all amax amin and_ any arange argmax argmin argsort
asin asinh atan atan2 atanh bool cat ceil celu chunk clamp clamp_max clamp_min clip clone concat
contiguous cos cosh cumprod cumsum detach div divide double elu embedding eq erf erfc exp exp2
expand expm1 flatten flip float floor floor_divide floordiv full full_like gather ge gelu getitem
glu group_norm gt half hardsigmoid hardswish hardtanh index_select int invert isfinite isinf isnan
layer_norm le leaky_relu lerp log log10 log1p log2 log_softmax logaddexp logical_and logical_not
logical_or logical_xor logsigmoid logsumexp long lt masked_fill max maximum mean min minimum mish
mod movedim mul multiply narrow ne neg negative new_full new_ones new_zeros normalize ones
ones_like or_ pad permute pos pow prod reciprocal relu relu6 repeat reshape rms_norm roll round
rsqrt rsub select selu sigmoid sign silu sin sinh softmax softmin softplus softsign sort split
sqrt square squeeze stack std sub subtract sum swapaxes t tan tanh tanhshrink to topk transpose
tril triu true_divide truediv trunc unbind unflatten unsqueeze var view where xor zeros zeros_like
"""
PURE = frozenset(_PURE.split()) | PRODUCTS
_IN_PLACE = "celu elu hardsigmoid hardswish hardtanh leaky_relu mish relu relu6 selu silu"
IN_PLACE = frozenset(_IN_PLACE.split())  # where a call asks for it
POOLS = frozenset((F.max_pool1d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d))
HOMES = (torch, F, operator, torch._C._nn, torch.special)
CHANGES = ("set_grad", "inference", "autocast", "nesting", "dual_level", "_enter", "_exit")

Bundle = tuple[Node, ...]


@dataclass
class Branches:
    """What leads to a join, in bundles of a node of each branch. The first one's stands for all."""

    join: Node
    ends: Bundle
    steps: dict[Node, Bundle] = field(default_factory=dict)  # by the node of the first branch
    pieces: dict[Node, Pieces] = field(default_factory=dict)
    shared: set[Node] = field(default_factory=set)
    places: dict[Node, int] = field(default_factory=dict)  # of which branch a step is
    cut: list[Node] = field(default_factory=list)  # the pieces of all branches

    def matches(self) -> bool:
        """Whether all branches do the same to pieces, and nobody sees what is in them."""
        left: list[Bundle] = [self.ends]
        seen: set[Node] = set()
        while left:
            bundle = left.pop()
            if bundle[0] in seen:
                if bundle != self.steps.get(bundle[0], bundle):
                    return False
                continue
            seen.add(bundle[0])
            found = pieces_of(bundle)
            if found is not None:
                self.pieces[bundle[0]] = found
                self.cut += bundle
                continue
            operands = self._step(bundle)
            if operands is None:
                return False
            left += operands
        return bool(self.pieces and self.steps) and self._unseen()

    def _step(self, bundle: Bundle) -> list[Bundle] | None:
        """What the same call of every branch reads, but for what all branches read; or None."""
        texts, operands = zip(*map(_taken_apart, bundle), strict=True)
        if len(set(texts)) > 1 or not _is_pure(bundle[0]):
            return None
        for k, node in enumerate(bundle):
            if self.places.setdefault(node, k) != k or KEY in node.meta.get("custom", {}):
                return None
        self.steps[bundle[0]] = bundle
        read = []
        for each in zip(*operands, strict=True):
            if all(n is each[0] for n in each):
                self.shared.add(each[0])
            elif len(set(each)) < len(each):
                return None
            else:
                read.append(each)
        return read

    def _unseen(self) -> bool:
        """Whether every step is read in its own branch alone."""
        ends = set(self.ends)
        for node, place in self.places.items():
            readers = set(node.users) - ({self.join} if node in ends else set())
            if any(self.places.get(reader) != place for reader in readers):
                return False
        return self.shared.isdisjoint(self.places)

    def products(self) -> list[Node]:
        """The library's calls in a branch."""
        return [n for n in self.steps if name_of(n.target) in PRODUCTS]

    def pays(self) -> bool:
        """Whether less calls are worth the copies."""
        count, products = len(self.ends), self.products()
        if len(products) == 0:
            return count >= FEWEST
        copied = sum(count * nbytes(n) for n, p in self.pieces.items() if p.dim > 0)
        return copied <= (count - 1) * len(products) * COPY

    def at_once(self) -> int:
        """How many branches hold no more side by side than eager holds, and a little."""
        count, products, end = len(self.ends), self.products(), self.ends[0].meta["example_value"]
        if not products or end.requires_grad:
            return count
        most = max(nbytes(n) + sum(map(nbytes, self._own(n))) for n in products)
        each = most - 2 * nbytes(self.ends[0])  # eager holds all ends, and the join of them
        return min(count, (most + SPARE) // each) if each > 0 else count

    def _own(self, node: Node) -> list[Node]:
        return [n for n in node.all_input_nodes if n in self.steps or n in self.pieces]

    def run(self) -> bool:
        """Whether vmap takes the branches, tried on tensors without memory."""
        values = {n: n.meta.get("example_value") for n in (*self.pieces, *self.shared)}
        fakes = [v for v in values.values() if isinstance(v, torch.Tensor)]
        if len(fakes) < len(values):
            return False
        end, order = self.ends[0].meta["example_value"], list(self.in_order())

        def branch(*pieces: torch.Tensor) -> object:
            env: dict[Node, object] = {**values, **dict(zip(self.pieces, pieces, strict=True))}
            for node in order:
                env[node] = _call(node, env)
            return env[self.ends[0]]

        try:
            with end.fake_mode, torch.no_grad(), _every_rule():
                given = [_several(values[n], len(self.ends)) for n in self.pieces]
                made = torch.func.vmap(branch)(*given)
        except Exception:  # whatever it is, it stays as it is
            return False
        return isinstance(made, torch.Tensor) and (made.shape[1:], made.dtype) == (
            end.shape,
            end.dtype,
        )

    def in_order(self) -> Iterator[Node]:
        """The steps of the first branch, in the order of the program."""
        return (n for n in self.join.graph.nodes if n in self.steps)

    def write(self) -> None:
        """The branches side by side, in the place of the join."""
        graph, count, end = self.join.graph, len(self.ends), self.ends[0].meta["example_value"]
        with graph.inserting_before(self.join), end.fake_mode, torch.no_grad():
            wholes = [p.side_by_side(self.put) for p in self.pieces.values()]
            graph.call_function(predispatch.lazy_load_decompositions)
            graph.call_function(predispatch._vmap_increment_nesting, (count, "error"))
            made = {n: _piece(graph, n, w) for n, w in zip(self.pieces, wholes, strict=True)}
            for node in list(self.in_order()):
                made[node] = graph.node_copy(node, lambda n: made.get(n, n))
                stands_for(made[node], count)
                if "inplace" in node.kwargs:
                    made[node].update_kwarg("inplace", False)
            last = made[self.ends[0]]
            whole = graph.call_function(predispatch._remove_batch_dim, (last, 1, count, 0))
            whole.meta["example_value"] = _several(end, count)
            graph.call_function(predispatch._vmap_decrement_nesting)
            whole = self._joined(whole)
        whole.meta = dict(self.join.meta)
        self.join.replace_all_uses_with(whole)
        self._erase()

    def put(self, target: Target, *args: Argument) -> Node:
        """A call of plain tensors, which knows what it makes."""
        kind = "call_method" if isinstance(target, str) else "call_function"
        node = self.join.graph.create_node(kind, target, args)
        node.meta["example_value"] = _call(node, {n: tensor_of(n) for n in node.all_input_nodes})
        stands_for(node, 0)
        return node

    def _joined(self, whole: Node) -> Node:
        """The results, which lie along a first dimension, where the join has them."""
        dim, added = _dim(self.join), JOINS[self.join.target]  # type: ignore[index]
        dim %= self.join.meta["example_value"].dim()
        if dim > 0:
            whole = self.put("movedim", whole, 0, dim)
        if not added:
            return self.put("flatten", whole, dim, dim + 1)
        return self.put("contiguous", whole)

    def _erase(self) -> None:
        """Leave out what nobody reads any more."""
        graph, done = self.join.graph, {self.join, *self.places, *self.cut}
        splits = {n.args[0] for n in self.cut if tensor_of(n.args[0]) is None}  # type: ignore[arg-type]
        for node in [n for n in reversed(graph.nodes) if n in done or n in splits]:
            if not node.users:
                graph.erase_node(node)


def side_by_side(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """The program with like branches side by side, and notes that say so; the program itself where
    it has none, or turns on something that they would be computed under."""
    if not any(_is_join(n) for n in gm.graph.nodes) or any(map(_switches, gm.graph.nodes)):
        return gm, ()
    graph, notes = Graph(), list[str]()
    graph.output(graph.graph_copy(gm.graph, {}))
    joins = [n for n in graph.nodes if _is_join(n)]
    while joins:
        join = joins.pop()
        ends = _ends(join)
        found = Branches(join, ends) if ends is not None else None
        if not found or not (found.matches() and found.pays() and not _touched(found)):
            continue
        if (size := found.at_once()) < 2 or not found.run():
            continue
        if size < len(found.ends):
            joins += _in_groups(found, size)
            continue
        calls = "a call" if len(found.steps) == 1 else f"{len(found.steps)} calls"
        notes.append(BESIDE.format(count=len(found.ends), calls=calls))
        found.write()
    return (GraphModule(gm, graph), tuple(notes)) if notes else (gm, ())


def _in_groups(found: Branches, size: int) -> list[Node]:
    """Joins of at most so many branches, which the join now joins."""
    join, count = found.join, -(-len(found.ends) // size)
    dim = _dim(join) % join.meta["example_value"].dim()
    bounds = [k * len(found.ends) // count for k in range(count + 1)]
    with join.graph.inserting_before(join), join.meta["example_value"].fake_mode, torch.no_grad():
        ends = [found.ends[a:b] for a, b in pairwise(bounds)]
        groups = [found.put(join.target, group, dim) for group in ends]
    join.target, join.args, join.kwargs = torch.cat, (groups, dim), {}
    return groups


def _is_join(node: Node) -> bool:
    return node.op == "call_function" and node.target in JOINS


def _switches(node: Node) -> bool:
    """Whether a call changes what later calls do."""
    return node.op == "call_function" and any(part in name_of(node.target) for part in CHANGES)


def _ends(join: Node) -> Bundle | None:
    """What is joined, where that is several tensors of one kind, without gaps."""
    ends = join.args[0] if join.args else join.kwargs.get("tensors")
    if not isinstance(ends, (list, tuple)) or len(ends) < 2 or "out" in join.kwargs:
        return None
    nodes = [n for n in ends if isinstance(n, Node)]
    values = [t for n in (*nodes, join) if (t := tensor_of(n)) is not None]
    if len(set(nodes)) < len(ends) or len(values) <= len(nodes) or type(_dim(join)) is not int:
        return None
    kinds = {(str(tuple(t.shape)), t.dtype, t.device, t.requires_grad) for t in values[:-1]}
    dense = all(t.is_contiguous() for t in values)
    return tuple(nodes) if len(kinds) == 1 and dense else None


def _dim(join: Node) -> int:
    named = join.kwargs.get("dim", join.kwargs.get("axis", 0))
    return join.args[1] if len(join.args) > 1 else named  # type: ignore[return-value]  # is asked


def _taken_apart(node: Node) -> tuple[str, list[Node]]:
    """A call as a text without the nodes that it reads, and these."""
    read: list[Node] = []

    def name(n: Node) -> str:
        read.append(n)
        return "%"

    text = repr((map_arg(node.args, name), map_arg(node.kwargs, name)))
    target = node.target if isinstance(node.target, str) else id(node.target)
    return f"{node.op} {target} {text}", read


def _is_pure(node: Node) -> bool:
    """Whether a call gives the same under vmap, and writes nothing but what only it reads."""
    name = name_of(node.target)
    if node.op == "call_method":
        known = name in PURE
    elif node.target is getattr:
        known = node.args[1] in ("T", "mT")
    elif node.op == "call_function":
        homely = any(getattr(home, name, None) is node.target for home in HOMES)
        known = node.target in POOLS or (name in PURE and homely)
    else:
        return False
    if not known or "out" in node.kwargs or (name in IN_PLACE and True in node.args):
        return False
    return not written(node) or _writes_own(node)


def _writes_own(node: Node) -> bool:
    """Whether a call with `inplace=True` writes what no other node stands for or reads."""
    (operand,) = node.all_input_nodes[:1]
    made = tensor_of(operand)
    if node.kwargs.get("inplace") is not True or made is None or set(operand.users) != {node}:
        return False
    for other in node.graph.nodes:
        if other is node:
            return True
        value = tensor_of(other)
        if other is not operand and value is not None and memory(value) == memory(made):
            return False
    raise AssertionError(node)


def _touched(found: Branches) -> bool:
    """Whether something writes into what the branches read: they would read it at another time."""
    read = [*(p.source for p in found.pieces.values()), *found.shared]
    places = {memory(t) for n in read if (t := tensor_of(n)) is not None}
    return any(memory(t) in places for n in found.join.graph.nodes for t in written(n))


def _piece(graph: Graph, piece: Node, whole: Node) -> Node:
    """What stands for each of the pieces under vmap."""
    each = graph.call_function(predispatch._add_batch_dim, (whole, 0, 1))
    each.meta = dict(piece.meta)
    return each


def _call(node: Node, env: dict[Node, object]) -> object:
    args = map_arg(node.args, lambda n: env[n])  # type: ignore[arg-type,return-value]  # values
    kwargs = map_arg(node.kwargs, lambda n: env[n])  # type: ignore[arg-type,return-value]
    kwargs = {k: False if k == "inplace" else v for k, v in kwargs.items()}
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]  # a function


def _several(one: object, count: int) -> torch.Tensor:
    assert isinstance(one, torch.Tensor)
    return torch.empty((count, *one.shape), dtype=one.dtype, device=one.device)


@contextmanager
def _every_rule() -> Iterator[None]:
    """vmap raises where it would call an operator piece by piece."""
    before = functorch._is_vmap_fallback_enabled()  # type: ignore[attr-defined]  # no stubs
    functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)  # type: ignore[attr-defined]
