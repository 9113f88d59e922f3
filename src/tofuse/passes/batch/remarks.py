"""Says of branches that were nearly batched which one differs, and in what."""

from __future__ import annotations

from collections.abc import Iterator

from tofuse.ir.dims import show_dim
from tofuse.ir.graph import Graph, Op, Scalar, Value
from tofuse.ir.region import Verdict
from tofuse.ops.table import OPS, Pattern
from tofuse.passes.batch.branch_match import STEPS, Branches, refusal
from tofuse.passes.batch.branch_runs import BranchRange, matching_runs
from tofuse.passes.rewrite import VIEWS


def near_misses(before: Graph, after: Graph) -> tuple[Verdict, ...]:
    """A verdict for each cat of `before` whose branches nearly match, and that `after` still has.

    Branches are numbered from 0. Nearly matching are branches of which neighbours match, or that
    do the same to their last step, or that read pieces of one tensor.
    """
    left = {op.result for op in after.ops if op.kind == "cat"}
    cats = [op for op in before.ops if op.kind == "cat" and op.result in left]
    if not cats:
        return ()
    branches, found = Branches(before), list[Verdict]()
    producers = before.producers()
    for cat in cats:
        told = _told(cat, branches, producers)
        if told is not None:
            branch, why = told
            where = f"branch[{branch}]", cat.result.name
            found.append(Verdict(*where, False, f"not batched: {why}", loc=cat.loc))
    return tuple(found)


def _told(cat: Op, branches: Branches, producers: dict[Value, Op]) -> tuple[int, str] | None:
    """The branch that differs from the others, and in what; None where nothing is alike."""
    n = len(cat.inputs)
    if n < 2:
        return None
    runs = matching_runs(cat.inputs, branches)
    if runs == [(0, n)]:
        why = refusal(cat, branches)
        return None if why is None else (0, f"{n} branches match, but {why}")
    longest = max(runs, key=lambda r: r[1] - r[0], default=(0, 1))
    odd = longest[1] if longest[1] < n else longest[0] - 1
    usual = longest[0]
    depth, why = _difference(cat.inputs[usual], cat.inputs[odd], producers)
    if any(OPS[op.kind].pattern is Pattern.RANDOM for op in _branch(cat.inputs[odd], producers)):
        why = "random numbers, which are keyed by their place in a tensor"
    if not runs and depth == 0 and not _pieces(cat.inputs, producers):
        return None
    return odd, f"{why}, {_others(longest, usual)}"


def _others(run: BranchRange, usual: int) -> str:
    if run[1] - run[0] == 1:
        return f"in branch[{usual}]"
    return f"in branch[{run[0]}] to branch[{run[1] - 1}], which match"


def _difference(usual: Value, odd: Value, producers: dict[Value, Op]) -> tuple[int, str]:
    """How many computing ops are the same above the first difference, and what that is."""
    pairs, depth, seen = [(usual, odd)], 0, set[tuple[Value, Value]]()
    sizes: str | None = None
    while pairs:
        a, b = pair = pairs.pop(0)
        if a is b or pair in seen:
            continue
        seen.add(pair)
        if a.shape != b.shape and sizes is None:
            sizes = f"size {_shape(b)}, and {_shape(a)}"
        first, second = producers.get(a), producers.get(b)
        if first is None or second is None:
            if first is not second:
                return depth, sizes or "it reads a tensor, where an op is"
            continue
        told = _ops_differ(first, second, sizes)
        if told is not None:
            return depth, told
        depth += first.kind not in VIEWS
        pairs += [
            (x, y)
            for x, y in zip(first.operands, second.operands, strict=True)
            if isinstance(x, Value) and isinstance(y, Value)
        ]
    return depth, sizes or "it reads another tensor than the next piece"


def _ops_differ(usual: Op, odd: Op, sizes: str | None) -> str | None:
    """In what two ops differ that stand in the same place."""
    if usual.kind != odd.kind or len(usual.operands) != len(odd.operands):
        return f"op {_name(odd)}, and {_name(usual)}"
    if OPS[usual.kind].pattern not in STEPS and usual.kind != "opaque":
        return f"op {_name(odd)} stays by itself"
    if usual.result.dtype != odd.result.dtype:
        return f"dtype {odd.result.dtype.value}, and {usual.result.dtype.value}"
    for x, y in zip(usual.operands, odd.operands, strict=True):
        if isinstance(x, Scalar) and isinstance(y, Scalar) and x.key != y.key:
            return f"constant {y!r}, and {x!r}"
        if isinstance(x, Value) is not isinstance(y, Value):
            return f"operand of {_name(odd)}: a number in one place, a tensor in the other"
    if usual.kind == "slice" or sizes is not None:
        return None
    for (key, here), (_, there) in zip(usual.attrs, odd.attrs, strict=False):
        if here != there:
            return f"{key} {there!r} of {_name(odd)}, and {here!r}"
    return None


def _pieces(values: tuple[Value, ...], producers: dict[Value, Op]) -> bool:
    """Whether all values are computed from slices of one tensor."""
    first, *others = (set(_cut(v, producers)) for v in values)
    return bool(first.intersection(*others)) and all(producers[v].kind != "slice" for v in values)


def _cut(value: Value, producers: dict[Value, Op]) -> Iterator[Value]:
    """The tensors of which a value's branch reads slices."""
    return (op.inputs[0] for op in _branch(value, producers) if op.kind == "slice")


def _branch(value: Value, producers: dict[Value, Op]) -> Iterator[Op]:
    """The ops that a value is computed from, down to slices."""
    stack, seen = [value], {value}
    while stack:
        op = producers.get(stack.pop())
        if op is None:
            continue
        yield op
        fresh = [x for x in op.inputs if x not in seen] if op.kind != "slice" else []
        seen.update(fresh)
        stack += fresh


def _shape(v: Value) -> str:
    return f"({', '.join(show_dim(d) for d in v.shape)})"


def _name(op: Op) -> str:
    return str(op.attr("target")) if op.kind == "opaque" else op.kind
