"""The memory that the eager program holds, with each tensor freed at its last use.

The nodes of one decomposed call count as one call. Tensors between them do not exist in eager.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import node_storages
from tofuse.torch_internals.trees import tree_leaves


@dataclass(frozen=True)
class EagerMemory:
    """Bytes that a program holds besides its arguments, in eager and in our partition.

    Saved tensors live only for the backward: results of the forward do not count.
    """

    forward_peak: int  # of eager
    saved_bytes: int = 0  # of eager
    backward_peak: int = 0  # of eager
    our_saved_bytes: int = 0
    recomputed_calls: int = 0  # by our backward, to save less
    budget_bytes: int | None = None  # of the user, for saved tensors
    saved_arguments: tuple[str, ...] = ()  # of our backward: the saved tensors among them
    num_forward_outputs: int = 0  # that the caller gets; the saved tensors follow them

    def peak(self, phase: str) -> int:
        """Return eager's peak in a phase: "forward", "backward" or "inference"."""
        return self.backward_peak if phase == "backward" else self.forward_peak


def simulate_eager(gm: GraphModule, num_fwd_outputs: int | None) -> EagerMemory:
    """Return the eager memory of a joint graph, or of an inference graph (None)."""
    order = list(gm.graph.nodes)
    outputs = tree_leaves(next(n for n in order if n.op == "output").args)
    return _EagerSimulation(order, num_fwd_outputs or len(outputs)).run()


@dataclass
class _EagerSimulation:
    order: Sequence[Node]
    num_fwd_outputs: int
    sizes: dict[int, int] = field(default_factory=dict)  # of storages, in bytes
    node_keys: dict[Node, frozenset[int]] = field(default_factory=dict)  # the storages of a node

    def run(self) -> EagerMemory:
        outputs = tree_leaves(next(n for n in self.order if n.op == "output").args)
        results = self._storages(n for n in outputs[: self.num_fwd_outputs] if isinstance(n, Node))
        grads = self._storages(n for n in outputs[self.num_fwd_outputs :] if isinstance(n, Node))
        arguments = self._storages(n for n in self.order if n.op in ("placeholder", "get_attr"))
        backward = backward_nodes(self.order)
        calls = _group_by_call([n for n in self.order if n not in backward])
        num_forward_calls = len(calls)
        calls += _group_by_call([n for n in self.order if n in backward])
        last_use = self._last_uses(calls) | dict.fromkeys([*results, *grads], len(calls))
        live: set[int] = set()
        peaks, live_bytes, saved, allocated = [0, 0], 0, 0, set(arguments)
        for k, call in enumerate(calls):
            if k == num_forward_calls:
                live -= results  # the caller holds them
                live_bytes = saved = sum(self.sizes[s] for s in live)
                peaks[1] = live_bytes
            new = {s for s in self._storages(call) if s not in allocated and last_use[s] > k}
            allocated |= new
            live |= new
            live_bytes += sum(self.sizes[s] for s in new)
            phase = int(k >= num_forward_calls)
            peaks[phase] = max(peaks[phase], live_bytes)
            dead = {s for n in call for s in self._read(n)} | self._storages(call)
            dead = {s for s in dead if s in live and last_use[s] <= k}
            live -= dead
            live_bytes -= sum(self.sizes[s] for s in dead)
        return EagerMemory(peaks[0], saved, peaks[1], num_forward_outputs=self.num_fwd_outputs)

    def _last_uses(self, calls: Sequence[Sequence[Node]]) -> dict[int, int]:
        found: dict[int, int] = {}
        for k, call in enumerate(calls):
            for n in call:
                found |= dict.fromkeys(self._storages((n, *n.all_input_nodes)), k)
        return found

    def _read(self, node: Node) -> set[int]:
        return self._storages(node.all_input_nodes)

    def _storages(self, nodes: Iterable[Node]) -> set[int]:
        """Return the storages of the nodes' tensors; record their sizes."""
        found: set[int] = set()
        for node in nodes:
            if (keys := self.node_keys.get(node)) is None:
                pairs = node_storages(node)
                self.sizes.update(pairs)
                keys = self.node_keys[node] = frozenset(key for key, _ in pairs)
            found |= keys
        return found


def backward_nodes(order: Sequence[Node]) -> set[Node]:
    """Return the nodes that autograd's backward computes, or that depend on a tangent."""
    found: set[Node] = set()
    for n in order:
        is_tangent = n.op == "placeholder" and "tangents" in str(n.target)
        tagged = n.op == "call_function" and n.meta.get("partitioner_tag") == "is_backward"
        reads = n.op != "output" and not found.isdisjoint(n.all_input_nodes)
        if is_tangent or tagged or reads:
            found.add(n)
    return found


def _group_by_call(order: Sequence[Node]) -> list[list[Node]]:
    """Group consecutive nodes that one call was decomposed into."""
    calls: list[list[Node]] = []
    previous: object = None
    for n in order:
        if n.op != "call_function":
            continue
        origin = str(n.meta.get("original_aten")), n.meta.get("seq_nr"), n.stack_trace
        is_whole_call = str(n.target) == origin[0] or "original_aten" not in n.meta
        if origin == previous and not is_whole_call:
            calls[-1].append(n)
        else:
            calls.append([n])
        previous = None if is_whole_call else origin
    return calls
