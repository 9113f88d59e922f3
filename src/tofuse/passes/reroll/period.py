"""Find ops that repeat: the steps of a loop that capture has unrolled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tofuse.cost.thresholds import MAX_EQUAL_OP_DISTANCES_TRIED, MIN_REROLLED_LOOP_STEPS
from tofuse.ir.call_arguments import exact_key
from tofuse.ir.graph import Graph, Op, Scalar, Value


@dataclass(frozen=True)
class Period:
    """`steps` times `length` ops that follow each other from position `start` of a program."""

    start: int
    length: int
    steps: int


def form_key(op: Op) -> Hashable:
    """Return an op's kind, its attributes but where a slice starts, and the types of its results.

    An op with a fusion hint has nothing in common with others.
    """
    if op.loc is not None and op.loc.fusion_hint:
        return op
    differs = "start" if op.kind == "slice" else ""
    attrs = tuple((name, exact_key(value)) for name, value in op.attrs if name != differs)
    return op.kind, attrs, tuple(r.type for r in op.results)


def op_key(op: Op) -> Hashable:
    """Return what the ops of two steps have in common: `form_key`, numbers and operands' types."""
    operands = tuple(x.key if isinstance(x, Scalar) else x.type for x in op.operands)
    return form_key(op), operands


def find_periods(graph: Graph, known: dict[Op, Hashable]) -> Iterator[Period]:
    """Yield the repetitions in a program, the one with the most ops first.

    The layers of a network may repeat, and inside of them the steps of a loop. Each repetition is
    cut into steps where the fewest values are read on both sides. `known` keeps the keys of ops
    from one call to the next.
    """
    numbers: dict[Hashable, int] = {}
    known |= ((op, op_key(op)) for op in graph.ops if op not in known)
    keys = [numbers.setdefault(known[op], len(numbers)) for op in graph.ops]
    runs = [run for length in _likely_lengths(keys) if (run := _longest_run(keys, length))]
    for start, end, length in sorted(runs, key=lambda r: (r[0] - r[1], r[2])):
        first = start + _best_cut(graph, start, end, length)
        yield Period(first, length, (end - first) // length)


def _likely_lengths(keys: Sequence[int]) -> list[int]:
    """Return the most frequent distances of equal ops."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for position, key in enumerate(keys):
        if key in last:
            distances[position - last[key]] += 1
        last[key] = position
    frequent = [d for d, count in distances.most_common(MAX_EQUAL_OP_DISTANCES_TRIED)]
    return [d for d in frequent if distances[d] >= MIN_REROLLED_LOOP_STEPS - 1]


def _longest_run(keys: Sequence[int], length: int) -> tuple[int, int, int] | None:
    """Return start, end and period of the longest part with this period; None if it is short."""
    best, start = (0, 0), 0
    for i in range(len(keys) - length + 1):
        if i == len(keys) - length or keys[i] != keys[i + length]:
            best = max(best, (i - start, -start))
            start = i + 1
    count, start = best[0], -best[1]
    if count < (MIN_REROLLED_LOOP_STEPS - 1) * length:
        return None
    return start, start + count + length, length


def _best_cut(graph: Graph, start: int, end: int, length: int) -> int:
    """Return how far from `start` the steps begin.

    They are cut where the fewest values of one step are read by the next. Among equal cuts, one
    where the source jumps back to an earlier line comes first. A value that is read a whole step
    later crosses every cut, so it does not count.
    """
    positions = {r: start + k for k, op in enumerate(graph.ops[start:end]) for r in op.results}
    middle = start + (end - start) // length // 2 * length
    last_use = _last_uses(graph, positions, range(middle, min(end, middle + 2 * length)))
    change = [0] * (length + 1)
    for v, user in last_use.items():
        made = positions[v]
        if not middle <= made < middle + length or user - made >= length:
            continue
        first, past = (made + 1 - middle) % length, (user + 1 - middle) % length
        change[first] += 1
        change[past] -= 1
        if past < first:  # the interval wraps around
            change[0] += 1
    crossing = list(accumulate(change[:length]))
    jumps = [_jumps_back(graph.ops[middle + k - 1], graph.ops[middle + k]) for k in range(length)]
    return min(range(length), key=lambda k: (crossing[k], not jumps[k], k))


def _jumps_back(op: Op, following: Op) -> bool:
    """Whether the second op is of an earlier source line, as the first one of a loop's body is."""
    a, b = op.loc, following.loc
    return a is not None and b is not None and a.file == b.file and b.line < a.line


def _last_uses(graph: Graph, positions: Mapping[Value, int], where: range) -> dict[Value, int]:
    """Return the last position in a range of the program that reads each value of it."""
    last: dict[Value, int] = {}
    for k in where:
        for v in graph.ops[k].inputs:
            if v in positions:
                last[v] = k
    return last
