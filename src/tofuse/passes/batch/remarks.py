"""Remarks on branches that nearly match but are not batched: which one differs, and how."""

from __future__ import annotations

from collections.abc import Iterator

from tofuse.ir.dims import show_dim
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ir.region import Rule, Verdict
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.batch.branch_match import BATCHABLE, BranchMatcher, rejection
from tofuse.passes.batch.branch_ranges import BranchRange, matching_ranges
from tofuse.passes.rewrite import VIEWS


def missed_batching_remarks(before: Graph, after: Graph) -> tuple[Verdict, ...]:
    """Return a verdict for each concat that `after` still has and whose branches nearly match.

    Branches are numbered from 0. They nearly match if some consecutive branches match, if the last
    op of all is the same, or if all read slices of one tensor.
    """
    remaining = {op.result for op in after.ops if op.kind == "cat"}
    cats = [op for op in before.ops if op.kind == "cat" and op.result in remaining]
    if not cats:
        return ()
    matcher, found = BranchMatcher(before), list[Verdict]()
    producers = before.producers()
    for cat in cats:
        remark = _remark(cat, matcher, producers)
        if remark is not None:
            branch, why = remark
            where = f"branch[{branch}]", cat.result.name
            found.append(Verdict(*where, False, Rule.NOT_BATCHED(why), loc=cat.loc))
    return tuple(found)


def _remark(cat: Op, matcher: BranchMatcher, producers: dict[Value, Op]) -> tuple[int, str] | None:
    """Return the branch that differs and how; None if the branches have nothing in common."""
    n = len(cat.inputs)
    if n < 2:
        return None
    ranges = matching_ranges(cat.inputs, matcher)
    if ranges == [(0, n)]:
        why = rejection(cat, matcher)
        return None if why is None else (0, f"{n} branches match, but {why}")
    longest = max(ranges, key=lambda r: r[1] - r[0], default=(0, 1))
    odd = longest[1] if longest[1] < n else longest[0] - 1
    expected = longest[0]
    depth, why = _first_difference(cat.inputs[expected], cat.inputs[odd], producers)
    odd_ops = _branch_ops(cat.inputs[odd], producers)
    if any(OPS[op.kind].pattern is Pattern.RANDOM for op in odd_ops):
        why = "random numbers depend on their index in the tensor"
    if not ranges and depth == 0 and not _read_slices_of_one_tensor(cat.inputs, producers):
        return None
    return odd, f"{why} ({_describe_range(longest)})"


def _describe_range(matching: BranchRange) -> str:
    start, end = matching
    if end - start == 1:
        return f"compared with branch[{start}]"
    return f"branch[{start}] to branch[{end - 1}] match"


def _first_difference(expected: Value, odd: Value, producers: dict[Value, Op]) -> tuple[int, str]:
    """Return the number of equal computing ops before the first difference, and the difference."""
    pairs, depth, seen = [(expected, odd)], 0, set[tuple[Value, Value]]()
    size_difference: str | None = None
    while pairs:
        a, b = pair = pairs.pop(0)
        if a is b or pair in seen:
            continue
        seen.add(pair)
        if a.shape != b.shape and size_difference is None:
            size_difference = f"size {_show_shape(b)} instead of {_show_shape(a)}"
        first, second = producers.get(a), producers.get(b)
        if first is None or second is None:
            if first is not second:
                why = "one branch reads a tensor where the other computes it"
                return depth, size_difference or why
            continue
        difference = _op_difference(first, second, size_difference)
        if difference is not None:
            return depth, difference
        depth += first.kind not in VIEWS
        pairs += [
            (x, y)
            for x, y in zip(first.operands, second.operands, strict=True)
            if isinstance(x, Value) and isinstance(y, Value)
        ]
    return depth, size_difference or "it reads a different tensor"


def _op_difference(expected: Op, odd: Op, size_difference: str | None) -> str | None:
    """Return the difference between two corresponding ops, or None."""
    if expected.kind != odd.kind or len(expected.operands) != len(odd.operands):
        return f"op {_op_name(odd)} instead of {_op_name(expected)}"
    if OPS[expected.kind].pattern not in BATCHABLE and expected.kind != "opaque":
        return f"op {_op_name(odd)} cannot be batched"
    if expected.result.dtype != odd.result.dtype:
        return f"dtype {odd.result.dtype.value} instead of {expected.result.dtype.value}"
    for x, y in zip(expected.operands, odd.operands, strict=True):
        if isinstance(x, Scalar) and isinstance(y, Scalar) and x.key != y.key:
            return f"constant {y!r} instead of {x!r}"
        if isinstance(x, Value) is not isinstance(y, Value):
            return f"operand of {_op_name(odd)} is a number in one branch, a tensor in the other"
    if expected.kind == "slice" or size_difference is not None:
        return None
    for (key, here), (_, there) in zip(expected.attrs, odd.attrs, strict=False):
        if here != there:
            return f"{key} {there!r} of {_op_name(odd)} instead of {here!r}"
    return None


def _read_slices_of_one_tensor(values: tuple[Value, ...], producers: dict[Value, Op]) -> bool:
    """Whether all values are computed from slices of one tensor."""
    first, *others = (set(_sliced_tensors(v, producers)) for v in values)
    return bool(first.intersection(*others)) and all(producers[v].kind != "slice" for v in values)


def _sliced_tensors(value: Value, producers: dict[Value, Op]) -> Iterator[Value]:
    """Return the tensors that the branch of a value reads slices of."""
    return (op.inputs[0] for op in _branch_ops(value, producers) if op.kind == "slice")


def _branch_ops(value: Value, producers: dict[Value, Op]) -> Iterator[Op]:
    """Yield the ops that a value is computed from, up to and including slices."""
    stack, seen = [value], {value}
    while stack:
        op = producers.get(stack.pop())
        if op is None:
            continue
        yield op
        unseen = [x for x in op.inputs if x not in seen] if op.kind != "slice" else []
        seen.update(unseen)
        stack += unseen


def _show_shape(v: Value) -> str:
    return f"({', '.join(show_dim(d) for d in v.shape)})"


def _op_name(op: Op) -> str:
    return str(op.attr("target")) if op.kind == "opaque" else op.kind
