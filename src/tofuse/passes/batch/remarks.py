"""Remarks on branches that nearly match but are not batched: which one differs, and how."""

from __future__ import annotations

from collections.abc import Iterator

from tofuse.analysis.alias import is_view
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Rule, Verdict
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.batch.branch_match import ConcatBranches


def missed_batching_remarks(before: Graph, after: Graph) -> tuple[Verdict, ...]:
    """Return a verdict for each concat that `after` still has and whose branches nearly match.

    Branches are numbered from 0. They nearly match if some consecutive branches match, if the last
    op of all is the same, or if all read slices of one tensor.
    """
    remaining = {op.result for op in after.ops if op.kind == "cat"}
    cats = [op for op in before.ops if op.kind == "cat" and op.result in remaining]
    if not cats:
        return ()
    concats, found = ConcatBranches(before), list[Verdict]()
    for cat in cats:
        remark = _remark(cat, concats)
        if remark is not None:
            branch, why = remark
            where = f"branch[{branch}]", cat.result.name
            found.append(Verdict(*where, False, Rule.NOT_BATCHED(why), loc=cat.loc))
    return tuple(found)


def _remark(cat: Op, concats: ConcatBranches) -> tuple[int, str] | None:
    """Return the branch that differs and how; None if the branches have nothing in common."""
    n = len(cat.inputs)
    if n < 2:
        return None
    producers, matcher = concats.producers, concats.matcher
    ranges = concats.matching_ranges(cat)
    if ranges == [(0, n)] and (branches := matcher.match(cat.inputs)) is not None:
        why = concats.rejection(cat, branches)
        return None if why is None else (0, f"{n} branches match, but {why}")
    start, end = max(ranges, key=lambda r: r[1] - r[0], default=(0, 1))
    odd = end if end < n else start - 1
    why, equal = matcher.difference(cat.inputs[start], cat.inputs[odd])
    if any(
        OPS[op.kind].pattern is Pattern.RANDOM for op in _branch_ops(cat.inputs[odd], producers)
    ):
        why = "random numbers depend on their index in the tensor"
    computed = any(v in producers and not is_view(producers[v]) for v in equal)
    if not (ranges or computed or _read_slices_of_one_tensor(cat.inputs, producers)):
        return None
    if end - start == 1:
        return odd, f"{why} (compared with branch[{start}])"
    return odd, f"{why} (branch[{start}] to branch[{end - 1}] match)"


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
