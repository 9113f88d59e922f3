"""The memory that running a program call by call would hold, each tensor freed at its last use.

Nodes that one call of the user's was taken apart into count as that call: what only they read
is no tensor of eager's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from tofuse.capture.fx.sizes import at_first_call


@dataclass(frozen=True)
class EagerMemory:
    """Bytes beside the arguments: at most in the forward, kept for the backward, at most in it.

    What is kept lives for the backward alone and is no result of the forward. `ours` is what our
    forward keeps, `kept` names those of our backward's arguments that are that, and `repeated` is
    how many calls the backward makes again to keep no more. `allowed` is the user's budget.
    """

    forward: int
    saved: int = 0
    backward: int = 0
    ours: int = 0
    repeated: int = 0
    allowed: int | None = None
    kept: tuple[str, ...] = ()
    results: int = 0  # of the forward, that the caller gets; what it saves stands behind

    def peak(self, phase: str) -> int:
        """Of one phase: "forward", "backward" or "inference"."""
        return self.backward if phase == "backward" else self.forward


def attach(gm: GraphModule, memory: EagerMemory) -> None:
    """Let a graph carry what is known of its program's memory."""
    gm.meta[_KEY] = memory


def memory_of(gm: GraphModule, num_fwd_outputs: int | None = None) -> EagerMemory:
    """What a graph carries; without that it is a joint graph, or a program without a backward."""
    found = gm.meta.get(_KEY)
    if isinstance(found, EagerMemory):
        return found
    outputs = tree_leaves(next(n for n in gm.graph.nodes if n.op == "output").args)
    return eager_memory(list(gm.graph.nodes), num_fwd_outputs or len(outputs))


_KEY = "tofuse memory"


def eager_memory(order: Sequence[Node], num_fwd_outputs: int) -> EagerMemory:
    """Of a joint graph, or of one without a backward: then all outputs are the forward's."""
    return _Walk(order, num_fwd_outputs).run()


@dataclass
class _Walk:
    order: Sequence[Node]
    num_fwd_outputs: int
    sizes: dict[int, int] = field(default_factory=dict)  # of storages
    known: dict[Node, frozenset[int]] = field(default_factory=dict)  # the storages of each node

    def run(self) -> EagerMemory:
        outputs = tree_leaves(next(n for n in self.order if n.op == "output").args)
        first = self._storages(n for n in outputs[: self.num_fwd_outputs] if isinstance(n, Node))
        second = self._storages(n for n in outputs[self.num_fwd_outputs :] if isinstance(n, Node))
        given = self._storages(n for n in self.order if n.op in ("placeholder", "get_attr"))
        after = backward_nodes(self.order)
        calls = _calls([n for n in self.order if n not in after])
        middle = len(calls)
        calls += _calls([n for n in self.order if n in after])
        last = self._last_uses(calls) | dict.fromkeys([*first, *second], len(calls))
        live: set[int] = set()
        peaks, held, saved, seen = [0, 0], 0, 0, set(given)
        for k, call in enumerate(calls):
            if k == middle:
                live -= first  # the caller's, whoever runs the backward
                held = saved = sum(self.sizes[s] for s in live)
                peaks[1] = held
            made = {s for s in self._storages(call) if s not in seen and last[s] > k}
            seen |= made
            live |= made
            held += sum(self.sizes[s] for s in made)
            phase = int(k >= middle)
            peaks[phase] = max(peaks[phase], held)
            dead = {s for n in call for s in self._read(n)} | self._storages(call)
            dead = {s for s in dead if s in live and last[s] <= k}
            live -= dead
            held -= sum(self.sizes[s] for s in dead)
        return EagerMemory(peaks[0], saved, peaks[1], results=self.num_fwd_outputs)

    def _last_uses(self, calls: Sequence[Sequence[Node]]) -> dict[int, int]:
        found: dict[int, int] = {}
        for k, call in enumerate(calls):
            for n in call:
                found |= dict.fromkeys(self._storages((n, *n.all_input_nodes)), k)
        return found

    def _read(self, node: Node) -> set[int]:
        return self._storages(node.all_input_nodes)

    def _storages(self, nodes: Iterable[Node]) -> set[int]:
        """The storages of the nodes' tensors, whose sizes are noted."""
        found: set[int] = set()
        for node in nodes:
            if (keys := self.known.get(node)) is None:
                pairs = storages(node)
                self.sizes.update(pairs)
                keys = self.known[node] = frozenset(key for key, _ in pairs)
            found |= keys
        return found


def storages(node: Node) -> list[tuple[int, int]]:
    """A key and the bytes of every storage that a node's value stands on."""
    found, made = [], node.meta.get("val")
    for value in (made,) if isinstance(made, torch.Tensor) else tree_leaves(made):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            storage = value.untyped_storage()
            found.append((storage._cdata, at_first_call(storage.nbytes())))
    return found


def backward_nodes(order: Sequence[Node]) -> set[Node]:
    """What autograd computes, or what needs a gradient that comes in."""
    found: set[Node] = set()
    for n in order:
        is_tangent = n.op == "placeholder" and "tangents" in str(n.target)
        tagged = n.op == "call_function" and n.meta.get("partitioner_tag") == "is_backward"
        reads = n.op != "output" and not found.isdisjoint(n.all_input_nodes)
        if is_tangent or tagged or reads:
            found.add(n)
    return found


def _calls(order: Sequence[Node]) -> list[list[Node]]:
    """Neighbours that stem from one call of the program, which was taken apart."""
    calls: list[list[Node]] = []
    before: object = None
    for n in order:
        if n.op != "call_function":
            continue
        origin = str(n.meta.get("original_aten")), n.meta.get("seq_nr"), n.stack_trace
        whole = str(n.target) == origin[0] or "original_aten" not in n.meta
        if origin == before and not whole:
            calls[-1].append(n)
        else:
            calls.append([n])
        before = None if whole else origin
    return calls
