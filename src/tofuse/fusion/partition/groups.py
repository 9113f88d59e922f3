"""Groups of ops that grow into regions, and the paths between them that forbid a merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.ir.graph import Op, Value


@dataclass(eq=False)
class Group:
    """Ops that will be one kernel (or one library call), in program order."""

    ops: list[Op]
    library: bool
    rank: int = 0  # of a group before all that read from it; no two are alike
    before: set[Group] = field(default_factory=set)  # groups it reads from
    after: set[Group] = field(default_factory=set)


@dataclass(eq=False)
class Groups:
    """A partition of the computing ops of a graph, acyclic at all times."""

    order: dict[Op, int]
    of: dict[Op, Group] = field(default_factory=dict)

    def add(self, op: Op, library: bool, producers: Iterable[Op]) -> Group:
        group = Group([op], library, rank=len(self.of))
        self.of[op] = group
        for p in producers:
            group.before.add(self.of[p])
            self.of[p].after.add(group)
        return group

    def merged_ops(self, a: Group, b: Group) -> list[Op]:
        if self.order[a.ops[-1]] < self.order[b.ops[0]]:
            return a.ops + b.ops
        return sorted(a.ops + b.ops, key=self.order.__getitem__)

    def merge(self, a: Group, b: Group) -> Group:
        """The larger of two groups takes in the other; the caller has checked `separable`."""
        kept, gone = (a, b) if len(a.ops) >= len(b.ops) else (b, a)
        _bring_together(a, b)
        for op in gone.ops:
            self.of[op] = kept
        kept.ops = self.merged_ops(a, b)
        for g in gone.before:
            g.after.remove(gone)
            g.after.add(kept)
        for g in gone.after:
            g.before.remove(gone)
            g.before.add(kept)
        kept.before = (kept.before | gone.before) - {kept, gone}
        kept.after = (kept.after | gone.after) - {kept, gone}
        return kept

    def separable(self, a: Group, b: Group) -> bool:
        """Whether no third group lies on a path between the two, so that they may be merged."""
        first, last = _by_rank((a, b))
        return not any(last in g.after for g in _behind(first, last))

    def sorted(self) -> list[Group]:
        """All groups, producers first, otherwise by program order."""
        groups = list(dict.fromkeys(self.of[op] for op in self.order if op in self.of))
        done: set[Group] = set()
        result: list[Group] = []
        for g in groups:
            stack = [g]
            while stack:
                top = stack[-1]
                waiting = [b for b in top.before if b not in done]
                if top in done:
                    stack.pop()
                elif waiting:
                    stack += sorted(waiting, key=lambda b: -self.order[b.ops[0]])
                else:
                    done.add(top)
                    result.append(stack.pop())
        return result


class Splits:
    """Results of ops, by name, in parts: no kernel makes some of two parts of one split."""

    def __init__(self, splits: Iterable[Iterable[frozenset[str]]] = ()) -> None:
        self.part_of = [{n: k for k, part in enumerate(s) for n in part} for s in splits]

    def part(self, a: Group, b: Group) -> bool:
        """Whether that keeps two groups from being one."""
        if not self.part_of:
            return False
        names = [v.name for g in (a, b) for op in g.ops for v in op.results]
        return any(len({of[n] for n in names if n in of}) > 1 for of in self.part_of)


def _bring_together(a: Group, b: Group) -> None:
    """Rank anew what lies between two groups that become one (Pearce and Kelly 2006).

    What the last of them needs comes before both, what needs the first after them.
    """
    first, last = _by_rank((a, b))
    ahead, behind = _ahead(first, last), _behind(first, last)
    if not ahead and not behind:
        return
    moved = [*_by_rank(ahead), first, last, *_by_rank(behind)]
    for g, rank in zip(moved, sorted(g.rank for g in moved), strict=True):
        g.rank = rank


def _by_rank(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: g.rank)


def _behind(first: Group, last: Group) -> set[Group]:
    """Groups that need the first one and do not rank behind the last."""
    seen: set[Group] = set()
    work = [first]
    while work:
        for g in work.pop().after:
            if g.rank < last.rank and g not in seen:
                seen.add(g)
                work.append(g)
    return seen


def _ahead(first: Group, last: Group) -> set[Group]:
    """Groups that the last one needs and that do not rank before the first."""
    seen: set[Group] = set()
    work = [last]
    while work:
        for g in work.pop().before:
            if g.rank > first.rank and g not in seen:
                seen.add(g)
                work.append(g)
    return seen


def roots(graph_ops: Iterable[Op], is_view: dict[Op, bool]) -> dict[Value, Op]:
    """For every value, the op that computes its elements: views are looked through."""
    found: dict[Value, Op] = {}
    for op in graph_ops:
        for r in op.results:
            if is_view[op]:
                source = op.inputs[0]
                if source in found:
                    found[r] = found[source]
            else:
                found[r] = op
    return found


def sources_of(ops: Iterable[Op], makers: dict[Value, Op]) -> dict[Op, list[Op]]:
    """The ops that compute what each op reads, through views too."""
    return {op: list(dict.fromkeys(makers[v] for v in op.inputs if v in makers)) for op in ops}


def reading(
    v: Value, users: Mapping[Value, Sequence[Op]], view: Mapping[Op, bool], order: Mapping[Op, int]
) -> list[Op]:
    """Computing ops that read a value, through views too, in order."""
    found: list[Op] = []
    work = [v]
    while work:
        for op in users.get(work.pop(), ()):
            if view[op]:
                work.append(op.result)
            else:
                found.append(op)
    return sorted(dict.fromkeys(found), key=order.__getitem__)
