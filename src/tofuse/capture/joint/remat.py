"""Saving less than the minimum cut does: values given up, the cheapest work for a byte first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from tofuse.capture.fx.eager_memory import storages

BANDWIDTH = 40e3  # bytes a microsecond that an operation moves, and what it computes beside
FLOPS = 50e3  # in a microsecond; only the order of the values matters, not the time
FUSED = 0.25  # of the traffic of an operation that fuses with what reads it


@dataclass(frozen=True)
class Bounded:
    """What is saved, and how many calls the backward repeats that it did not before.

    `limit` is the most bytes that the user allows.
    """

    saved: tuple[Node, ...]
    repeated: int
    limit: int | None = None


@dataclass
class Budget:
    """The forward half of a joint graph: what may be computed again, and what is saved.

    `repeatable` says which nodes may run again, `free` which storages cost nothing because the
    caller holds them, `fuses` which nodes are no call of their own.
    """

    order: Sequence[Node]
    sinks: Sequence[Node]  # forward values that the backward reads
    repeatable: Callable[[Node], bool]
    fuses: Callable[[Node], bool]
    given: frozenset[Node]  # arguments that the backward may read too
    free: frozenset[int]
    saved: dict[Node, None] = field(default_factory=dict)
    repeated: dict[Node, None] = field(default_factory=dict)
    known: dict[Node, list[tuple[int, int]]] = field(default_factory=dict)

    def bound(self, saved: Sequence[Node], limit: int) -> Bounded:
        """At most `limit` bytes saved, or as few as can be."""
        self.saved = dict.fromkeys(saved)
        if self.nbytes(self.saved) <= limit:
            return Bounded(tuple(saved), 0, limit)
        self.repeated = dict.fromkeys(self._walk(self.sinks) or ())
        before = len(self._calls())
        place = {n: k for k, n in enumerate(self.order)}
        heap = [(self._price(n), place[n], n) for n in saved if self._gain(n, ()) > 0]
        heapq.heapify(heap)
        while heap and self.nbytes(self.saved) > limit:
            price, k, n = heapq.heappop(heap)
            now = self._price(n)
            if now == float("inf"):
                continue
            if now > price and heap and now > heap[0][0]:
                heapq.heappush(heap, (now, k, n))
                continue
            again = self._walk([n], without=n)
            assert again is not None
            self._give_up(n, again)
        self._prune()
        kept = tuple(n for n in self.order if n in self.saved)
        return Bounded(kept, max(0, len(self._calls()) - before), limit)

    def nbytes(self, nodes: Sequence[Node] | dict[Node, None]) -> int:
        """Bytes of the distinct storages that are there for the backward alone."""
        held = {key: size for n in nodes for key, size in self._storages(n)}
        return sum(size for key, size in held.items() if key not in self.free)

    def _give_up(self, node: Node, again: list[Node]) -> None:
        del self.saved[node]
        self.saved |= dict.fromkeys(self._anchors(again))
        self.repeated |= dict.fromkeys(n for n in again if n not in self.saved)

    def _price(self, node: Node) -> float:
        """Microseconds of work for a byte less."""
        again = self._walk([node], without=node)
        if again is None:
            return float("inf")
        gain = self._gain(node, self._anchors(again))
        work = sum(self._work(n) for n in again if n not in self.repeated)
        return work / gain if gain > 0 else float("inf")

    def _gain(self, node: Node, instead: Sequence[Node]) -> int:
        rest = {n: None for n in self.saved if n is not node} | dict.fromkeys(instead)
        return self.nbytes(self.saved) - self.nbytes(rest)

    def _anchors(self, again: Sequence[Node]) -> list[Node]:
        """Among nodes to compute again those that cannot be, such as seeds."""
        return [n for n in again if not self.repeatable(n)]

    def _walk(self, goals: Sequence[Node], without: Node | None = None) -> list[Node] | None:
        """What the goals need beside arguments and saved values; None if that cannot be had.

        A tensor that cannot be computed again is part of the answer, to be saved; not the goal.
        """
        found: dict[Node, None] = {}
        work = [n for n in goals if n not in self.saved or n is without]
        while work:
            n = work.pop()
            if n in found or n in self.given:
                continue
            found[n] = None
            if not self.repeatable(n):
                is_tensor = isinstance(n.meta.get("val"), torch.Tensor)
                if n is without or not is_tensor or n.op == "placeholder":  # it will have changed
                    return None
                continue
            work += [i for i in n.all_input_nodes if i not in self.saved or i is without]
        return list(found)

    def _prune(self) -> None:
        """Drop what nothing reads any more, and add the arguments that are read from now on."""
        self.repeated = dict.fromkeys(self._walk(self.sinks) or ())
        read = {i for n in self.repeated for i in n.all_input_nodes} | set(self.sinks)
        arguments = [n for n in self.order if n in self.given and n.op == "placeholder"]
        self.saved = {n: None for n in (*self.saved, *arguments) if n in read}

    def _storages(self, node: Node) -> list[tuple[int, int]]:
        if node not in self.known:
            self.known[node] = storages(node)
        return self.known[node]

    def _calls(self) -> list[Node]:
        return [n for n in self.repeated if self.repeatable(n) and not self.fuses(n)]

    def _work(self, node: Node) -> float:
        """Microseconds, roughly."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return 0.0
        moved = sum(size for n in (node, *node.all_input_nodes) for _, size in self._storages(n))
        time = moved / BANDWIDTH * (FUSED if self.fuses(node) else 1.0)
        formula = flop_registry.get(node.target.overloadpacket)
        if formula is None:
            return time
        args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
        flops = formula(*args, **kwargs, out_val=node.meta["val"])
        hint = flops if isinstance(flops, (int, float)) else flops.node.hint
        return time + float(hint or 0) / FLOPS


def limit_of(budget: float | int | None, saved: int) -> int | None:
    """The bytes that a budget allows where `saved` is the default: a fraction of it up to 1."""
    if budget is None:
        return None
    return int(budget * saved) if budget <= 1 else int(budget)
