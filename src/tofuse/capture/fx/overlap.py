"""Overlap of tensors in memory, and of what one call reads and writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from tofuse.capture.fx.aliases import MUTATING_NAMES, is_mutating_name, storage_id
from tofuse.capture.fx.node_tensors import strided_fake_tensor
from tofuse.capture.fx.sizes import size_hint
from tofuse.cost.thresholds import MAX_OVERLAP_STEPS
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.operators import OpOverloadPacket
from tofuse.torch_internals.symbolic_shapes import tracing_operators
from tofuse.torch_internals.trees import tree_leaves


def has_write_overlap(spans: Sequence[tuple[int, int, bool]]) -> bool:
    """Whether two spans (first byte, end, is written) overlap and at least one is written."""
    max_end = max_written_end = 0
    for first, end, is_written in sorted(spans):
        if first == end:
            continue
        if first < (max_end if is_written else max_written_end):
            return True
        max_end = max(max_end, end)
        max_written_end = max(max_written_end, end) if is_written else max_written_end
    return False


def has_internal_overlap(tensor: torch.Tensor) -> bool:
    """Whether two indices of a tensor may have one address."""
    pairs = [
        (size_hint(s, 1), size_hint(n, 1))
        for s, n in zip(tensor.stride(), tensor.shape, strict=True)
    ]
    reach = 0
    for stride, extent in sorted(pairs):
        if extent == 0:
            return False
        if extent > 1:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False


def reaches_beside(view: torch.Tensor, argument: torch.Tensor) -> bool:
    """Whether a view by `as_strided` may have elements in memory that the argument has not."""
    base = storage_id(argument) << 64
    first, end = byte_span(argument, base)
    view_first, view_end = byte_span(view, base)
    has_gaps = end - first > size_hint(argument.numel(), 1) * argument.itemsize
    return has_gaps or view_first < first or view_end > end


def byte_span(tensor: torch.Tensor, base: int) -> tuple[int, int]:
    """Return the first byte of a tensor and the byte after its last.

    `base` is the tensor's address, or the storage's for a fake tensor.
    """
    extents = [size_hint(n, 1) for n in tensor.shape]
    if isinstance(tensor, FakeTensor):
        base += size_hint(tensor.storage_offset(), 1) * tensor.itemsize
    if 0 in extents:
        return base, base
    reach = sum((n - 1) * size_hint(s, 1) for n, s in zip(extents, tensor.stride(), strict=True))
    return base, base + (reach + 1) * tensor.itemsize


# -- reads and writes of one call -----------------------------------------------------------------

COPIES = frozenset({"copy_", "setitem", "__setitem__"})  # may drop leading sizes of 1
# write into a copy that has the strides of its operand, and overlaps itself if that does
SCATTERS_OF_VIEWS = frozenset({"select_scatter", "slice_scatter", "diagonal_scatter"})


class _Operand(NamedTuple):
    """A tensor of a call; `row` is its position in a list.

    `_foreach_*` calls take the positions in turn.
    """

    tensor: FakeTensor
    row: int | None


def overwrites_itself(name: str, written: Iterable[object], first: Iterable[object]) -> bool:
    """Whether a call writes into a tensor, or a copy of one, that may overlap itself.

    `written` are the arguments that it writes; `first` holds its first argument, if there is one.
    """
    tensors = [*written, *first] if name in SCATTERS_OF_VIEWS else written
    return any(isinstance(t, torch.Tensor) and has_internal_overlap(t) for t in tensors)


def overwrites_operand(name: str, written: Sequence[object], arguments: Sequence[object]) -> bool:
    """Whether a call of this name may write into elements that it reads, or writes, elsewhere.

    Eager raises an error for some of these calls, and the results of others depend on the order of
    the elements. A functional program reads all operands first. `written` are among the tensors of
    the arguments. Pointwise operators may read the very tensor they write.
    """
    if name in ("setitem", "__setitem__"):
        part = _indexed_part(*arguments[:2])
        written, arguments = [part], [part, *arguments[1:]]
    operands = list(_operands(name, arguments))
    if len(operands) < 2:
        return False
    by_storage: dict[int, list[_Operand]] = {}
    for operand in operands:
        by_storage.setdefault(storage_id(operand.tensor), []).append(operand)
    reads_itself = _is_pointwise(name)
    return any(
        _conflict(a, b, reads_itself)
        for group in by_storage.values()
        for a, b in _pairs_in_reach(group)
        if any(x.tensor is t for x in (a, b) for t in written)
    )


def broadcasts_written(name: str, written: Sequence[object], arguments: Sequence[object]) -> bool:
    """Whether a pointwise call in place has an operand that would broadcast the written tensor.

    Eager raises an error; AOTAutograd replaces the tensor by the larger result.
    """
    if not is_mutating_name(name) or name in COPIES or name.startswith("_foreach_"):
        return False
    if not _is_pointwise(name) and not _is_pointwise(name.removesuffix("_")):
        return False
    tensors = [operand.tensor for operand in _operands(name, arguments)]
    return any(not _fits(a, b) for b in tensors if any(b is t for t in written) for a in tensors)


def _fits(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether the first tensor broadcasts to the shape of the second, at their first sizes."""
    sizes, whole = ([size_hint(n, 1) for n in t.shape] for t in (a, b))
    pairs = zip(reversed(sizes), reversed(whole), strict=False)
    return len(sizes) <= len(whole) and all(n in (1, m) for n, m in pairs)


def _pairs_in_reach(operands: Sequence[_Operand]) -> Iterator[tuple[_Operand, _Operand]]:
    """Yield the pairs of operands of one storage whose spans overlap."""
    spans = sorted((*byte_span(x.tensor, 0), k) for k, x in enumerate(operands))
    for n, (_, end, k) in enumerate(spans):
        for m in range(n + 1, len(spans)):
            if spans[m][0] >= end:
                break
            yield operands[k], operands[spans[m][2]]


def _indexed_part(x: object, index: object) -> object:
    """Return the view `x[index]`; `x` if the index selects by tensors, lists or bools."""
    by_position = (int, torch.SymInt, slice, type(None), type(...))
    indices = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(i, by_position) and not isinstance(i, bool) for i in indices):
        return x
    assert isinstance(x, FakeTensor)
    with tracing_operators(x.fake_mode):
        return x[index]  # type: ignore[index]  # checked


def _is_pointwise(name: str) -> bool:
    """Whether functions of this name compute each element from the elements of the same index."""
    if name == "copy_" or name in MUTATING_NAMES:
        return "matmul" not in name
    packet = getattr(torch.ops.aten, name.removeprefix("_foreach_"), None)
    return isinstance(packet, OpOverloadPacket) and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )


def _operands(name: str, arguments: Sequence[object]) -> Iterator[_Operand]:
    by_row = name.startswith(("_foreach_", "_fused_"))
    for argument in arguments:
        for k, leaf in enumerate(tree_leaves(argument)):
            tensor = strided_fake_tensor(leaf)
            if tensor is not None:
                yield _Operand(
                    tensor, k if by_row and isinstance(argument, (list, tuple)) else None
                )


def _conflict(a: _Operand, b: _Operand, reads_itself: bool) -> bool:
    """Whether two operands, one of them written, share elements other than index by index."""
    if reads_itself and a.row == b.row and _layout(a.tensor) == _layout(b.tensor):
        return False
    return may_share_elements(a.tensor, b.tensor)


def _layout(t: FakeTensor) -> tuple[object, ...]:
    """Return a key: tensors of one storage with equal keys have each index at one address."""
    dims = [(size_hint(n, 1), size_hint(s, 1)) for n, s in zip(t.shape, t.stride(), strict=True)]
    offset = size_hint(t.storage_offset(), 0)
    return t.dtype, offset, tuple(n for n, _ in dims), tuple(s for n, s in dims if n != 1)


def may_share_elements(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether two tensors of one storage may have an element in common, at their first sizes.

    They do if indices i and j solve sum(i * strides of a) - sum(j * strides of b) = distance.
    """
    (start, end), (other_start, other_end) = byte_span(a, 0), byte_span(b, 0)
    if start == end or other_start == other_end or end <= other_start or other_end <= start:
        return False
    if a.itemsize != b.itemsize:
        return True
    ranges: dict[int, tuple[int, int]] = {}  # of the index of each stride
    for t, sign in ((a, 1), (b, -1)):
        for extent, stride in zip(t.shape, t.stride(), strict=True):
            low, high = ranges.get(s := size_hint(stride, 1), (0, 0))
            last = sign * (size_hint(extent, 1) - 1)
            ranges[s] = low + min(last, 0), high + max(last, 0)
    ranges.pop(0, None)
    terms = tuple((s, *ranges[s]) for s in sorted(ranges, reverse=True))
    return _is_solvable((other_start - start) // a.itemsize, terms)


def _is_solvable(total: int, terms: tuple[tuple[int, int, int], ...]) -> bool:
    """Whether a sum of multiples of strides is `total`, each (stride, lowest, highest multiple).

    Return True if that takes too many steps to find out.
    """
    lows = [*accumulate((s * low for s, low, _ in reversed(terms)), initial=0)][::-1]
    highs = [*accumulate((s * high for s, _, high in reversed(terms)), initial=0)][::-1]
    divisors = [*accumulate((s for s, *_ in reversed(terms)), math.gcd, initial=0)][::-1]
    pending = [(0, total)]
    for _ in range(MAX_OVERLAP_STEPS):
        if not pending:
            return False
        k, rest = pending.pop()
        if k == len(terms):
            return True  # the bounds leave 0 only
        stride, low, high = terms[k]
        first = max(low, -((highs[k + 1] - rest) // stride))
        last = min(high, (rest - lows[k + 1]) // stride)
        rests = (rest - n * stride for n in range(first, min(last, first + MAX_OVERLAP_STEPS) + 1))
        divisor = divisors[k + 1]
        pending += [(k + 1, r) for r in rests if (r % divisor == 0 if divisor else r == 0)]
    return True
