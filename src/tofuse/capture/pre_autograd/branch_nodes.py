"""Describe the calls of Dynamo's program to the matcher of isomorphic branches."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import chain, takewhile

import torch
import torch.nn.functional as F
from torch.fx import Node
from torch.fx.node import map_arg

from tofuse.analysis.isomorphism import BranchNode, Sliced, SliceRead
from tofuse.capture.fx.aliases import storage_id, storage_ids, written_tensors
from tofuse.capture.fx.node_tensors import example_tensor, target_name
from tofuse.hints import HINT_KEY
from tofuse.torch_internals.operators import BUILTIN_NN

_LIBRARY_CALLS = (
    "linear matmul mm bmm addmm baddbmm einsum conv1d conv2d conv3d __matmul__ bilinear"
)
LIBRARY_CALLS = frozenset(_LIBRARY_CALLS.split())
# Functions and methods whose results under vmap are those for each slice; none is random.
_PURE = """
abs absolute acos acosh add addcdiv addcmul all amax amin and_ any arange argmax argmin argsort
asin asinh atan atan2 atanh bool cat ceil celu chunk clamp clamp_max clamp_min clip clone concat
contiguous cos cosh cumprod cumsum detach div divide double elu embedding eq erf erfc exp exp2
expand expm1 flatten flip float floor floor_divide floordiv full full_like gather ge gelu getitem
glu group_norm gt half hardsigmoid hardswish hardtanh index_select int invert isfinite isinf isnan
layer_norm le leaky_relu lerp log log10 log1p log2 log_softmax logaddexp logical_and logical_not
logical_or logical_xor logsigmoid logsumexp long lt masked_fill max maximum mean min minimum mish
mod movedim mul multiply narrow ne neg negative new_full new_ones new_zeros normalize numpy_T ones
ones_like or_ pad permute pos pow prod reciprocal relu relu6 repeat reshape rms_norm roll round
rsqrt rsub select selu sigmoid sign silu sin sinh softmax softmin softplus softsign sort split
sqrt square squeeze stack std sub subtract sum swapaxes t tan tanh tanhshrink to topk transpose
tril triu true_divide truediv trunc unbind unflatten unsqueeze var view where xor zeros zeros_like
"""
PURE = frozenset(_PURE.split()) | LIBRARY_CALLS
POOLS = frozenset((F.max_pool1d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d))
MODULES = (torch, F, operator, BUILTIN_NN, torch.special, torch.ops.aten)
SPLITS = frozenset(("split", "chunk", "tensor_split", "split_with_sizes", "unsafe_split"))

INDEX, SLICE, LITERAL = "index", "slice", "literal"  # kinds of parts of an index


def describe(node: Node) -> BranchNode[Node]:
    """Describe a call: its text, the nodes it reads, and the slice that it is."""
    read: list[Node] = []

    def placeholder(n: Node) -> str:
        read.append(n)
        return "%"

    text = repr(map_arg((node.args, node.kwargs), placeholder))
    target = node.target if isinstance(node.target, str) else id(node.target)
    unique = HINT_KEY in node.meta.get("custom", {}) or not _is_pure(node)
    return BranchNode(
        f"{node.op} {target} {text}", tuple(read), unique=unique, slice=_slice_read(node)
    )


def _is_pure(node: Node) -> bool:
    """Return whether a call is the same under vmap and writes only what no other call reads."""
    name = target_name(node.target)
    if node.op == "call_method":
        known = name in PURE
    elif node.target is getattr:
        known = node.args[1] in ("T", "mT")
    elif node.op == "call_function":
        in_module = any(getattr(module, name, None) is node.target for module in MODULES)
        known = node.target in POOLS or (name in PURE and in_module)
    else:
        return False
    if not known or "out" in node.kwargs:
        return False
    return not written_tensors(node) or _writes_private_tensor(node)


def _writes_private_tensor(node: Node) -> bool:
    """Return whether `inplace=True` writes a tensor without other readers or aliases."""
    (operand,) = node.all_input_nodes[:1]
    written = example_tensor(operand)
    if node.kwargs.get("inplace") is not True or written is None or set(operand.users) != {node}:
        return False
    before = takewhile(lambda other: other is not node, node.graph.nodes)
    return storage_id(written) not in storage_ids(n for n in before if n is not operand)


def _slice_read(node: Node) -> SliceRead[Node] | None:
    """Return the slice of a tensor that a call returns, or None."""
    source, rest = node.args[0] if node.args else None, node.args[1:]
    if not isinstance(source, Node) or node.kwargs:
        return None
    if node.target is operator.getitem:
        if example_tensor(source) is None:
            return _part_read(source, rest[0])
        return _index_read(source, rest[0] if isinstance(rest[0], tuple) else (rest[0],))
    name, whole = target_name(node.target), example_tensor(source)
    numbers = [i for i in rest if isinstance(i, int)]
    if whole is None or name not in ("select", "narrow") or len(numbers) < len(rest):
        return None
    first = numbers[1]
    if name == "narrow" and first < 0:
        return None
    part = first if name == "select" else slice(first, first + numbers[2])
    return _index_read(source, _index_along(numbers[0] % whole.dim(), part))


def _part_read(split: Node, position: object) -> SliceRead[Node] | None:
    """Return the slice that is one result of a call that splits a tensor."""
    name, parts = target_name(split.target), split.meta.get("example_value")
    source = split.args[0] if split.args else None
    if not isinstance(source, Node) or not isinstance(parts, (tuple, list)):
        return None
    rest, whole = split.args[1 if name == "unbind" else 2 :], example_tensor(source)
    dim = split.kwargs.get("dim", rest[0] if rest else 0)
    if whole is None or not isinstance(dim, int) or type(position) is not int:
        return None
    dim, position = dim % whole.dim(), position % len(parts)
    if name == "unbind":
        return _index_read(source, _index_along(dim, position))
    ends = [t.shape[dim] for t in parts[: position + 1] if isinstance(t, torch.Tensor)]
    if name not in SPLITS or not all(type(n) is int for n in ends):
        return None
    return _index_read(source, _index_along(dim, slice(sum(ends[:-1]), sum(ends))))


def _index_along(dim: int, part: object) -> tuple[object, ...]:
    return (*[slice(None)] * dim, part)


def _index_read(source: Node, index: tuple[object, ...]) -> SliceRead[Node] | None:
    """Return the slice `source[index]` if the index has integers, slices, `None` and `...` only.

    The slice has a dimension for each part of the index. Its form has the kinds of the parts with
    the extents they read, or the part itself where the extent is symbolic.
    """
    if not all(map(_is_static, index)):
        return None
    shape = list(source.meta["example_value"].shape)
    unread = len(shape) - len(index) + index.count(None) + index.count(...)
    index = index if ... in index else (*index, ...)
    rows, form = list[tuple[int, int, int]](), list[tuple[str, object]]()
    for part in chain.from_iterable([slice(None)] * unread if i is ... else [i] for i in index):
        extent = shape.pop(0) if part is not None else None
        if isinstance(part, slice) and type(extent) is int:
            begin, end, step = part.indices(extent)
            rows.append((begin, len(range(begin, end, step)), step))
            form.append((SLICE, extent))
        elif isinstance(part, int) and type(extent) is int:
            if not -extent <= part < extent:
                return None
            rows.append((part % extent, 1, 1))
            form.append((INDEX, extent))
        else:
            rows.append((0, 0, 1))
            form.append((LITERAL, part))
    starts, sizes, steps = (tuple(row[k] for row in rows) for k in range(3))
    return SliceRead(source, starts, sizes, steps, tuple(form))


def _is_static(i: object) -> bool:
    """Return whether a part of an index is an integer, a slice of integers, `None` or `...`."""
    if isinstance(i, slice):
        return all(e is None or type(e) is int for e in (i.start, i.stop, i.step))
    return i is None or i is Ellipsis or type(i) is int


def result_dim(sliced: Sliced[Node]) -> int:
    """Return the dimension of a result along which the slices are adjacent."""
    before = sliced.first.form[: sliced.dim]
    return sum(
        kind == SLICE or not (kind == INDEX or isinstance(part, int)) for kind, part in before
    )


def stack_slices(sliced: Sliced[Node], count: int, add_call: Callable[..., Node]) -> Node:
    """Return the slices stacked along a new first dimension, contiguous.

    `add_call(target, *args)` returns the node of a new call.
    """
    first, dim = sliced.first, result_dim(sliced)
    index: list[object] = []
    for k, (kind, part) in enumerate(first.form):
        start, step = first.start[k], first.step[k]
        size = first.size[k] * (count if k == sliced.dim else 1)
        if kind == LITERAL:
            index.append(part)
        elif kind == INDEX and k != sliced.dim:
            index.append(start)
        elif size == part and step == 1:
            index.append(slice(None))
        else:
            index.append(slice(start, start + size * step, step))
    whole = first.source
    if any(part != slice(None) for part in index):
        whole = add_call(operator.getitem, whole, tuple(index))
    if first.form[sliced.dim][0] == SLICE:
        whole = add_call("unflatten", whole, dim, (count, -1))
    if dim > 0:
        whole = add_call("movedim", whole, dim, 0)
    return add_call("contiguous", whole)
