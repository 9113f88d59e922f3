"""Rematerialization to a memory limit: evict saved values, the cheapest per byte first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from tofuse.capture.fx.aliases import node_storages
from tofuse.cost.thresholds import (
    FUSED_TRAFFIC,
    REMAT_LIBRARY_FLOPS_PER_US,
    REMAT_TRAFFIC_BYTES_PER_US,
)
from tofuse.torch_internals.operators import OpOverload


@dataclass(frozen=True)
class RematResult:
    """The saved values, and the number of additional calls that the backward recomputes."""

    saved: tuple[Node, ...]
    saved_bytes: int
    recomputed_calls: int
    limit: int | None = None  # in bytes


@dataclass
class Rematerializer:
    """Chooses the saved and the recomputed values of a joint graph's forward.

    Storages in `free_storages` cost nothing, because the caller holds them. Nodes that are fusible
    are not counted as calls.
    """

    order: Sequence[Node]
    sinks: Sequence[Node]  # forward values that the backward reads
    can_recompute: Callable[[Node], bool]
    is_fusible: Callable[[Node], bool]
    arguments: frozenset[Node]  # that the backward may read, too
    free_storages: frozenset[int]
    saved: dict[Node, None] = field(default_factory=dict)
    recomputed: dict[Node, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.storages = {n: node_storages(n) for n in self.order}

    def rematerialize(self, saved: Sequence[Node], limit: int) -> RematResult:
        """Evict saved values until at most `limit` bytes are saved, or as few as possible."""
        self.saved = dict.fromkeys(saved)
        if self.nbytes(self.saved) <= limit:
            return RematResult(tuple(saved), self.nbytes(saved), 0, limit)
        self.recomputed = dict.fromkeys(self._nodes_to_recompute(self.sinks) or ())
        calls_before = len(self._recomputed_calls())
        position = {n: k for k, n in enumerate(self.order)}
        heap = [
            (self._cost_per_byte(n), position[n], n) for n in saved if self._bytes_freed(n, ()) > 0
        ]
        heapq.heapify(heap)
        while heap and self.nbytes(self.saved) > limit:
            old_cost, k, n = heapq.heappop(heap)
            cost = self._cost_per_byte(n)
            if cost == float("inf"):
                continue
            if cost > old_cost and heap and cost > heap[0][0]:
                heapq.heappush(heap, (cost, k, n))
                continue
            recomputed = self._nodes_to_recompute([n], evicted=n)
            assert recomputed is not None
            del self.saved[n]
            self.saved |= dict.fromkeys(self._must_save(recomputed))
            self.recomputed |= dict.fromkeys(r for r in recomputed if r not in self.saved)
        self._update_saved()
        still_saved = tuple(n for n in self.order if n in self.saved)
        recomputed_calls = max(0, len(self._recomputed_calls()) - calls_before)
        return RematResult(still_saved, self.nbytes(still_saved), recomputed_calls, limit)

    def nbytes(self, nodes: Sequence[Node] | dict[Node, None]) -> int:
        """Return the bytes of the distinct storages that live only for the backward."""
        sizes = {key: size for n in nodes for key, size in self.storages[n]}
        return sum(size for key, size in sizes.items() if key not in self.free_storages)

    def _cost_per_byte(self, node: Node) -> float:
        """Return the microseconds of recomputation per byte that evicting a value frees."""
        recomputed = self._nodes_to_recompute([node], evicted=node)
        if recomputed is None:
            return float("inf")
        freed = self._bytes_freed(node, self._must_save(recomputed))
        time = sum(self._estimated_time(n) for n in recomputed if n not in self.recomputed)
        return time / freed if freed > 0 else float("inf")

    def _bytes_freed(self, node: Node, newly_saved: Sequence[Node]) -> int:
        rest = {n: None for n in self.saved if n is not node} | dict.fromkeys(newly_saved)
        return self.nbytes(self.saved) - self.nbytes(rest)

    def _must_save(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that cannot be recomputed, such as seeds."""
        return [n for n in nodes if not self.can_recompute(n)]

    def _nodes_to_recompute(
        self, goals: Sequence[Node], evicted: Node | None = None
    ) -> list[Node] | None:
        """Return the nodes that goals need besides arguments and saved values; None if impossible.

        The result may contain tensors that cannot be recomputed and must be saved; these must not
        be the evicted node.
        """
        found: dict[Node, None] = {}
        worklist = [n for n in goals if n not in self.saved or n is evicted]
        while worklist:
            n = worklist.pop()
            if n in found or n in self.arguments:
                continue
            found[n] = None
            if not self.can_recompute(n):
                is_tensor = isinstance(n.meta.get("val"), torch.Tensor)
                if n is evicted or not is_tensor or n.op == "placeholder":  # a mutated argument
                    return None
                continue
            worklist += [i for i in n.all_input_nodes if i not in self.saved or i is evicted]
        return list(found)

    def _update_saved(self) -> None:
        """Remove saved values without users, and add arguments that recomputed nodes read."""
        self.recomputed = dict.fromkeys(self._nodes_to_recompute(self.sinks) or ())
        read = {i for n in self.recomputed for i in n.all_input_nodes} | set(self.sinks)
        arguments = [n for n in self.order if n in self.arguments and n.op == "placeholder"]
        self.saved = {n: None for n in (*self.saved, *arguments) if n in read}

    def _recomputed_calls(self) -> list[Node]:
        return [n for n in self.recomputed if self.can_recompute(n) and not self.is_fusible(n)]

    def _estimated_time(self, node: Node) -> float:
        """Return a rough estimate of a node's time in microseconds."""
        if not isinstance(node.target, OpOverload):
            return 0.0
        nodes = (node, *node.all_input_nodes)
        traffic = sum(size for n in nodes for _, size in self.storages[n])
        time = (
            traffic / REMAT_TRAFFIC_BYTES_PER_US * (FUSED_TRAFFIC if self.is_fusible(node) else 1.0)
        )
        formula = flop_registry.get(node.target.overloadpacket)
        if formula is None:
            return time
        args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
        flops = formula(*args, **kwargs, out_val=node.meta["val"])
        hint = flops if isinstance(flops, (int, float)) else flops.node.hint
        return time + float(hint or 0) / REMAT_LIBRARY_FLOPS_PER_US
