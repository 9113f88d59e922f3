"""Nodes of Dynamo's programs that are the pieces of one tensor, in order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from tofuse.capture.fx.node_tensors import name_of, tensor_of

SPLITS = frozenset(("split", "chunk", "tensor_split", "split_with_sizes", "unsafe_split"))
Index = tuple[object, ...]
Put = Callable[..., Node]


@dataclass(frozen=True)
class Pieces:
    """`source[index]` cut along a dimension into so many pieces; `alone`: each of one place, that
    has not the dimension."""

    source: Node
    index: Index | None
    dim: int
    count: int
    alone: bool

    def side_by_side(self, put: Put) -> Node:
        """The pieces along a new first dimension, without gaps; `put` makes a node of a call."""
        whole = self.source
        if self.index is not None:
            whole = put(operator.getitem, whole, self.index)
        if not self.alone:
            whole = put("unflatten", whole, self.dim, (self.count, -1))
        if self.dim > 0:
            whole = put("movedim", whole, self.dim, 0)
        return put("contiguous", whole)


def pieces_of(nodes: Sequence[Node]) -> Pieces | None:
    """What tensor the nodes are the pieces of, all of one size and one after the other."""
    reads = [_read(n) for n in nodes]
    sources = {r[0] for r in reads if r is not None}
    if len(sources) != 1 or None in reads:
        return None
    (source,), indices = sources, [r[1] for r in reads if r is not None]
    whole = tensor_of(source)
    if whole is None:
        return _of_split(source, nodes, indices)
    return _of_indices(source, whole, indices)


def _read(node: Node) -> tuple[Node, object] | None:
    """What a node reads a part of, and the index that says which."""
    source, rest = node.args[0] if node.args else None, node.args[1:]
    if not isinstance(source, Node) or node.kwargs:
        return None
    if node.target is operator.getitem:
        return source, rest[0]
    name, whole = name_of(node.target), tensor_of(source)
    numbers = [i for i in rest if isinstance(i, int)]
    if whole is None or name not in ("select", "narrow") or len(numbers) < len(rest):
        return None
    before = [slice(None)] * (numbers[0] % whole.dim())
    if name == "select":
        return source, (*before, numbers[1])
    return source, (*before, slice(numbers[1], numbers[1] + numbers[2])) if numbers[1] >= 0 else ()


def _of_split(split: Node, nodes: Sequence[Node], numbers: Sequence[object]) -> Pieces | None:
    """Elements of what a call has cut a tensor into."""
    name, parts = name_of(split.target), split.meta.get("example_value")
    source = split.args[0] if split.args else None
    if not isinstance(source, Node) or not isinstance(parts, (tuple, list)):
        return None
    whole, sizes = tensor_of(source), [tensor_of(n) for n in nodes]
    named = split.kwargs.get("dim", split.args[1 if name == "unbind" else 2 :] or 0)
    dim = named[0] if isinstance(named, tuple) else named
    if whole is None or None in sizes or not isinstance(dim, int) or not _follow(numbers, 1):
        return None
    dim, first = dim % whole.dim(), numbers[0]
    assert isinstance(first, int)
    if name == "unbind":
        return Pieces(source, _range(dim, first, len(nodes)), dim, len(nodes), alone=True)
    extents = [t.shape[dim] for t in parts if isinstance(t, torch.Tensor)]
    if name not in SPLITS or len(extents) < len(parts):
        return None
    if (
        not all(type(n) is int for n in extents)
        or len({extents[first + k] for k in range(len(nodes))}) > 1
    ):
        return None
    start, size = sum(extents[:first]), extents[first]
    index = _range(dim, start, size * len(nodes))
    return Pieces(source, index, dim, len(nodes), alone=False) if size else None


def _of_indices(source: Node, whole: torch.Tensor, indices: Sequence[object]) -> Pieces | None:
    """`x[:, 0], x[:, 1], ...` or `x[..., 0:8], x[..., 8:16], ...`."""
    tuples = [i if isinstance(i, tuple) else (i,) for i in indices]
    if len({len(t) for t in tuples}) > 1 or not all(_is_plain(i) for t in tuples for i in t):
        return None
    columns = list(zip(*tuples, strict=True))
    moving = [k for k, column in enumerate(columns) if len(set(map(repr, column))) > 1]
    if len(moving) != 1:
        return None
    (place,) = moving
    index, column = tuples[0], columns[place]
    dim, kept = _dimensions(index, place, whole.dim())
    extent = whole.shape[dim]
    if type(extent) is not int:
        return None
    alone = all(type(i) is int for i in column)
    spans = [_span(i, extent) for i in column]
    if None in spans:
        return None
    starts = [s[0] for s in spans if s is not None]
    sizes = {s[1] - s[0] for s in spans if s is not None}
    if len(sizes) != 1 or not (size := sizes.pop()) or not _follow(starts, size):
        return None
    taken = slice(starts[0], starts[0] + size * len(column))
    return Pieces(source, (*index[:place], taken, *index[place + 1 :]), kept, len(column), alone)


def _is_plain(i: object) -> bool:
    """Whether a part of an index is a number, a slice without steps, or says nothing of a place."""
    if isinstance(i, slice):
        ends = (i.start, i.stop, i.step)
        return all(e is None or type(e) is int for e in ends) and i.step in (None, 1)
    return i is None or i is Ellipsis or type(i) is int


def _dimensions(index: Index, place: int, rank: int) -> tuple[int, int]:
    """Of which dimension a part of the index speaks, and which that is in the result."""
    reads = [i is not None and i is not Ellipsis for i in index]
    dim = kept = 0
    for i, reading in zip(index[:place], reads, strict=False):
        if i is Ellipsis:
            dim += rank - sum(reads)
            kept += rank - sum(reads)
        else:
            dim += reading
            kept += type(i) is not int
    return dim, kept


def _span(i: object, extent: int) -> tuple[int, int] | None:
    if isinstance(i, slice):
        begin, end, _ = i.indices(extent)
        return (begin, end) if begin < end else None
    if type(i) is not int or not -extent <= i < extent:
        return None
    return i % extent, i % extent + 1


def _follow(starts: Sequence[object], size: int) -> bool:
    """Whether places lie one after the other."""
    if not all(type(s) is int for s in starts):
        return False
    first = starts[0]
    assert isinstance(first, int)
    return all(s == first + k * size for k, s in enumerate(starts))


def _range(dim: int, start: int, size: int) -> Index:
    return (*[slice(None)] * dim, slice(start, start + size))
