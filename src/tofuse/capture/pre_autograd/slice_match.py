"""Match of nodes in Dynamo's program that are consecutive slices of one tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from tofuse.capture.fx.node_tensors import example_tensor, target_name

SPLITS = frozenset(("split", "chunk", "tensor_split", "split_with_sizes", "unsafe_split"))
Index = tuple[object, ...]
AddCall = Callable[..., Node]


@dataclass(frozen=True)
class ConsecutiveSlices:
    """`source[index]` divided along `dim` into `count` slices of one size.

    With `drops_dim`, each slice is at one position and does not have the dimension.
    """

    source: Node
    index: Index | None
    dim: int
    count: int
    drops_dim: bool

    def stack(self, add_call: AddCall) -> Node:
        """Return the slices stacked along a new first dimension, contiguous.

        `add_call(target, *args)` returns the node of a new call.
        """
        whole = self.source
        if self.index is not None:
            whole = add_call(operator.getitem, whole, self.index)
        if not self.drops_dim:
            whole = add_call("unflatten", whole, self.dim, (self.count, -1))
        if self.dim > 0:
            whole = add_call("movedim", whole, self.dim, 0)
        return add_call("contiguous", whole)


def match_slices(nodes: Sequence[Node]) -> ConsecutiveSlices | None:
    """Return the tensor whose consecutive slices of one size the nodes are, or None."""
    reads = [_slice_read(n) for n in nodes]
    sources = {r[0] for r in reads if r is not None}
    if len(sources) != 1 or None in reads:
        return None
    (source,), indices = sources, [r[1] for r in reads if r is not None]
    whole = example_tensor(source)
    if whole is None:
        return _match_split(source, nodes, indices)
    return _match_indices(source, whole, indices)


def _slice_read(node: Node) -> tuple[Node, object] | None:
    """Return the source and the index that a node reads, or None if it reads no slice."""
    source, rest = node.args[0] if node.args else None, node.args[1:]
    if not isinstance(source, Node) or node.kwargs:
        return None
    if node.target is operator.getitem:
        return source, rest[0]
    name, whole = target_name(node.target), example_tensor(source)
    numbers = [i for i in rest if isinstance(i, int)]
    if whole is None or name not in ("select", "narrow") or len(numbers) < len(rest):
        return None
    before = [slice(None)] * (numbers[0] % whole.dim())
    if name == "select":
        return source, (*before, numbers[1])
    return source, (*before, slice(numbers[1], numbers[1] + numbers[2])) if numbers[1] >= 0 else ()


def _match_split(
    split: Node, nodes: Sequence[Node], positions: Sequence[object]
) -> ConsecutiveSlices | None:
    """Match the results at `positions` of a call that splits a tensor."""
    name, parts = target_name(split.target), split.meta.get("example_value")
    source = split.args[0] if split.args else None
    if not isinstance(source, Node) or not isinstance(parts, (tuple, list)):
        return None
    whole, tensors = example_tensor(source), [example_tensor(n) for n in nodes]
    dim_argument = split.kwargs.get("dim", split.args[1 if name == "unbind" else 2 :] or 0)
    dim = dim_argument[0] if isinstance(dim_argument, tuple) else dim_argument
    if whole is None or None in tensors or not isinstance(dim, int):
        return None
    if not _are_consecutive(positions, 1):
        return None
    dim, first = dim % whole.dim(), positions[0]
    assert isinstance(first, int)
    if name == "unbind":
        index = _slice_along(dim, first, len(nodes))
        return ConsecutiveSlices(source, index, dim, len(nodes), drops_dim=True)
    extents = [t.shape[dim] for t in parts if isinstance(t, torch.Tensor)]
    if name not in SPLITS or len(extents) < len(parts):
        return None
    if (
        not all(type(n) is int for n in extents)
        or len({extents[first + k] for k in range(len(nodes))}) > 1
    ):
        return None
    start, size = sum(extents[:first]), extents[first]
    index = _slice_along(dim, start, size * len(nodes))
    return ConsecutiveSlices(source, index, dim, len(nodes), drops_dim=False) if size else None


def _match_indices(
    source: Node, whole: torch.Tensor, indices: Sequence[object]
) -> ConsecutiveSlices | None:
    """Match `x[:, 0], x[:, 1], ...` or `x[..., 0:8], x[..., 8:16], ...`."""
    tuples = [i if isinstance(i, tuple) else (i,) for i in indices]
    if len({len(t) for t in tuples}) > 1 or not all(_is_static(i) for t in tuples for i in t):
        return None
    columns = list(zip(*tuples, strict=True))
    varying = [k for k, column in enumerate(columns) if len(set(map(repr, column))) > 1]
    if len(varying) != 1:
        return None
    (place,) = varying
    index, column = tuples[0], columns[place]
    dim, result_dim = _dimensions(index, place, whole.dim())
    extent = whole.shape[dim]
    if type(extent) is not int:
        return None
    drops_dim = all(type(i) is int for i in column)
    spans = [_span(i, extent) for i in column]
    if None in spans:
        return None
    starts = [s[0] for s in spans if s is not None]
    sizes = {s[1] - s[0] for s in spans if s is not None}
    if len(sizes) != 1 or not (size := sizes.pop()) or not _are_consecutive(starts, size):
        return None
    joint = slice(starts[0], starts[0] + size * len(column))
    joint_index = (*index[:place], joint, *index[place + 1 :])
    return ConsecutiveSlices(source, joint_index, result_dim, len(column), drops_dim)


def _is_static(i: object) -> bool:
    """Return whether a part of an index is an integer, a slice without step, `None` or `...`."""
    if isinstance(i, slice):
        ends = (i.start, i.stop, i.step)
        return all(e is None or type(e) is int for e in ends) and i.step in (None, 1)
    return i is None or i is Ellipsis or type(i) is int


def _dimensions(index: Index, place: int, rank: int) -> tuple[int, int]:
    """Return the source's and the result's dimension for the part of an index at `place`."""
    reads = [i is not None and i is not Ellipsis for i in index]
    dim = result_dim = 0
    for i, reading in zip(index[:place], reads, strict=False):
        if i is Ellipsis:
            dim += rank - sum(reads)
            result_dim += rank - sum(reads)
        else:
            dim += reading
            result_dim += type(i) is not int
    return dim, result_dim


def _span(i: object, extent: int) -> tuple[int, int] | None:
    """Return the first position of an integer or a slice, and the one after its last."""
    if isinstance(i, slice):
        begin, end, _ = i.indices(extent)
        return (begin, end) if begin < end else None
    if type(i) is not int or not -extent <= i < extent:
        return None
    return i % extent, i % extent + 1


def _are_consecutive(starts: Sequence[object], size: int) -> bool:
    """Return whether slices of `size` elements at these positions follow one another."""
    if not all(type(s) is int for s in starts):
        return False
    first = starts[0]
    assert isinstance(first, int)
    return all(s == first + k * size for k, s in enumerate(starts))


def _slice_along(dim: int, start: int, size: int) -> Index:
    return (*[slice(None)] * dim, slice(start, start + size))
