"""Match isomorphic branches: the same computation on other slices, or on other tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Generic, TypeVar, Union

from tofuse.ir.dims import Dim

N = TypeVar("N", bound=Hashable)
Bundle = tuple[N, ...]  # the corresponding nodes of all branches, in branch order
Texts = tuple[tuple[str, str], ...]  # names and texts


@dataclass(frozen=True)
class SliceRead(Generic[N]):
    """The elements `start + i * step` of every dimension of `source`, for i below `size`.

    `form` has for each dimension what else has to be equal in adjacent slices.
    """

    source: N
    start: tuple[Dim, ...]
    size: tuple[Dim, ...]
    step: tuple[int, ...]
    form: tuple[tuple[str, object], ...] = ()

    def moved(self, dim: int, slices: int) -> SliceRead[N]:
        """Return the slice that lies `slices` of this size further."""
        size, here = self.size[dim], self.start[dim]
        start = (*self.start[:dim], here + slices * self.step[dim] * size, *self.start[dim + 1 :])
        return replace(self, start=start)


@dataclass(frozen=True)
class BranchNode(Generic[N]):
    """A node as the matcher sees it. Nodes that differ in operands only compute the same.

    An input has no `op`. Other leaves are computed before the branches. A `unique` node computes
    something else each time.
    """

    op: str
    operands: tuple[N, ...] = ()
    constants: Texts = ()
    attrs: Texts = ()
    dtype: str = ""
    size: str = ""
    leaf: bool = False
    unique: bool = False
    slice: SliceRead[N] | None = None

    @cached_property
    def key(self) -> tuple[object, ...]:
        """All but the operands."""
        count = len(self.operands)
        return self.op, count, self.constants, self.attrs, self.dtype, self.size


@dataclass(frozen=True)
class Shared(Generic[N]):
    """A bundle of one node that all branches read."""

    node: N


@dataclass(frozen=True)
class Sliced(Generic[N]):
    """A bundle of adjacent slices of one size along `dim`; `first` is that of branch 0."""

    first: SliceRead[N]
    dim: int


@dataclass(frozen=True)
class Stacked(Generic[N]):
    """A bundle of unrelated nodes of one type."""

    nodes: Bundle[N]


@dataclass(frozen=True)
class Equal(Generic[N]):
    """A bundle of nodes that compute the same on the bundles of their operands."""

    operands: tuple[Bundle[N], ...]


Role = Union[Shared[N], Sliced[N], Stacked[N], Equal[N]]  # noqa: UP007
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Branches(Generic[N]):
    """Isomorphic branches that compute `root`: a role for every bundle, operands before users."""

    root: Bundle[N]
    roles: Mapping[Bundle[N], Role[N]]

    def bundles(self, kind: type[R]) -> dict[Bundle[N], R]:
        """Return the bundles of a role."""
        return {b: role for b, role in self.roles.items() if isinstance(role, kind)}


class BranchMatcher(Generic[N]):
    """Match bundles of nodes, which `describe` describes."""

    def __init__(self, describe: Callable[[N], BranchNode[N]]) -> None:
        self.describe = cache(describe)
        self.match, self._role = cache(self._match), cache(self._find_role)

    def _match(self, root: Bundle[N]) -> Branches[N] | None:
        """Return the branches that compute the nodes of `root` if they are isomorphic."""
        roles: dict[Bundle[N], Role[N]] = {}
        stack = [root]
        while stack:
            role = self._role(stack[-1])
            if role is None:
                return None
            missing = (
                [x for x in role.operands if x not in roles] if isinstance(role, Equal) else []
            )
            if not missing:
                roles.setdefault(stack.pop(), role)
            stack += missing
        return Branches(root, roles)

    def _find_role(self, bundle: Bundle[N]) -> Role[N] | None:
        if all(n is bundle[0] for n in bundle):
            return Shared(bundle[0])
        nodes = [self.describe(n) for n in bundle]
        if all(n.leaf for n in nodes):
            return Stacked(bundle) if len({(n.dtype, n.size) for n in nodes}) == 1 else None
        sliced = _adjacent([n.slice for n in nodes])
        if sliced is not None:
            return sliced
        if any(n.leaf or n.unique or n.key != nodes[0].key for n in nodes):
            return None
        return Equal(tuple(zip(*(n.operands for n in nodes), strict=True)))

    def difference(self, expected: N, odd: N) -> tuple[str, list[N]]:
        """Return how a branch differs first from the expected one, and the equal nodes before.

        Operators and constants come first: other sizes change other attributes too.
        """
        pairs, seen, size = [(expected, odd)], dict[tuple[N, N], None](), ""
        for x, y in pairs:
            if x is y or (x, y) in seen:
                continue
            a, b = self.describe(x), self.describe(y)
            if a.size != b.size and not size:
                size = f"size {b.size} instead of {a.size}"
            if (a.op == "") != (b.op == ""):
                why = size or "one branch reads a tensor where the other computes it"
            else:
                why = _node_difference(a, b, bool(size))
            if why:
                return why, [a for a, _ in seen]
            seen[x, y] = None
            pairs += zip(a.operands, b.operands, strict=True)
        return size or "it reads a different tensor", [a for a, _ in seen]


def _adjacent(reads: list[SliceRead[N] | None]) -> Sliced[N] | None:
    """Return the role of adjacent slices along one dimension."""
    first, second = reads[:2]
    if first is None or second is None or len(first.start) != len(second.start):
        return None
    moved = [d for d, (a, b) in enumerate(zip(first.start, second.start, strict=True)) if a != b]
    if len(moved) != 1 or not isinstance(first.size[moved[0]], int):
        return None
    same = all(read == first.moved(moved[0], k) for k, read in enumerate(reads))
    return Sliced(first, moved[0]) if same else None


def _node_difference(a: BranchNode[N], b: BranchNode[N], sizes_differ: bool) -> str:
    """Return how `b` differs from `a` in anything but its size; nothing if it does not."""
    if a.op != b.op:
        return f"op {b.op} instead of {a.op}"
    if a.unique:
        return f"op {a.op} cannot be batched"
    names = ("dtype", a.dtype), ("number of operands", str(len(a.operands))), *a.constants
    others = ("dtype", b.dtype), ("number of operands", str(len(b.operands))), *b.constants
    if not sizes_differ and a.slice is None:
        names, others = (*names, *a.attrs), (*others, *b.attrs)
    differing = ((x, y) for x, y in zip(names, others, strict=False) if x != y)
    return next((f"{y[0]} {y[1]} instead of {x[1]}" for x, y in differing), "")
