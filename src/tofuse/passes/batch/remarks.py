"""Remarks on branches that nearly match but are not batched: which one differs, and how."""

from __future__ import annotations

from tofuse.analysis.alias import is_view
from tofuse.analysis.reachability import reachable
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.region import Verdict
from tofuse.ir.rules import Rule
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
    first, *others = (
        {op.inputs[0] for op in _branch_ops(v, producers) if op.kind == "slice"} for v in values
    )
    return bool(first.intersection(*others)) and all(producers[v].kind != "slice" for v in values)


def _branch_ops(value: Value, producers: dict[Value, Op]) -> list[Op]:
    """Return the ops that a value is computed from, up to and including slices."""

    def operands(v: Value) -> tuple[Value, ...]:
        return producers[v].inputs if v in producers and producers[v].kind != "slice" else ()

    return [producers[v] for v in reachable([value], operands) if v in producers]
