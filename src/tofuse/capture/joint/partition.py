"""Splitting a joint graph: what the forward saves, and what the backward computes again.

A minimum cut, as in torch's own partitioner, but of bytes alone and with our own rules:

- Whatever we fuse is computed again rather than saved; library calls, reductions and random
  seeds never are.
- The arguments of the forward cost nothing: they live anyway. Those that the program changes
  afterwards are not saved where any other choice is left.
- What the forward returns and the backward reads costs nothing either, as eager saves it too,
  and is taken first.
- What the forward writes out anyhow and a library call of the backward reads (the operand of
  a matrix product) is saved: computing it again would cost a pass over memory.
- Saving what the forward would otherwise not write costs half as much again.
- A value more than CHAIN operations, or two softmaxes of halves, from the last saved one is saved.
- Where that is more than eager would save, or than `memory_budget` allows, saved values are given
  up again (`budget.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.partitioners import (
    _extract_fwd_bwd_modules,
    cleanup_recompute_tags,
    has_recomputable_ops,
    must_recompute,
)
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from tofuse.capture.fx.eager_memory import (
    EagerMemory,
    attach,
    memory_of,
    storages,
)
from tofuse.capture.fx.sizes import at_first_call
from tofuse.capture.joint.mincut import INFINITE, cut_vertices
from tofuse.capture.joint.narrow_indices import narrow_places
from tofuse.capture.joint.remat import Bounded, Budget, limit_of
from tofuse.capture.joint.scatter_to_select import compare_places
from tofuse.capture.lower.convert import can_fuse, rule_of
from tofuse.capture.lower.rules.depthwise_convolution import DEPTHWISE
from tofuse.capture.lower.rules.pooling import POOLING
from tofuse.capture.lower.rules.reductions import REDUCTIONS
from tofuse.hints import hint_of
from tofuse.ir.fusion_hints import NO_FUSE
from tofuse.ops.table import TRANSCENDENTAL

CHAIN = 30.0  # transcendental operations computed again per value, at most
CHEAP = 0.05  # what any other operation counts in this
PEAK = 0.6 * CHAIN  # and what subtracting the maximum of halves does: two such are too many
RESULT, ARGUMENT = 1, 2  # the price of what lives anyway; a result saves more work
LITTLE = 64 * 1024  # bytes that are saved though eager saves them not, such as row statistics
# Rules of what reads all memory.
PASSES = frozenset((*REDUCTIONS.values(), *POOLING.values(), *DEPTHWISE.values()))
HALVES = (torch.float16, torch.bfloat16)
LAST_RESORT = 1 << 50  # the price of saving what will be changed


def partition(
    joint: GraphModule,
    joint_inputs: Sequence[object],
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: list[int] | None = None,
    budget: float | None = None,
) -> tuple[GraphModule, GraphModule]:
    """The partition function of AOTAutograd: the forward and the backward graph."""
    if has_recomputable_ops(joint):
        joint = cleanup_recompute_tags(joint, is_default_partition=False)
    memory = memory_of(joint, num_fwd_outputs)
    joint = narrow_places(compare_places(joint))
    plan = _Plan(list(joint.graph.nodes), num_fwd_outputs)
    found = plan.bounded(plan.saved(), budget, memory)
    saved, free = found.saved, plan.living()
    memory = replace(
        memory,
        ours=plan.nbytes(saved),
        allowed=found.limit,
        repeated=found.repeated,
        kept=tuple(n.name for n in saved if any(key not in free for key, _ in storages(n))),
    )
    tensors = [n for n in saved if isinstance(n.meta.get("val"), torch.Tensor)]
    tensors += [n for n in plan.numbers() if n not in saved]
    # floats of sizes are computed again from the integers
    numbers = [
        n for n in plan.order if n in plan.forward and isinstance(n.meta.get("val"), torch.SymInt)
    ]
    forward, backward = _extract_fwd_bwd_modules(
        joint, tensors, saved_sym_nodes=numbers, num_fwd_outputs=num_fwd_outputs
    )
    done = {n.name for n in plan.forward if n.op == "call_function"}
    forward.graph.eliminate_dead_code(is_impure_node=_must_stay)
    backward.graph.eliminate_dead_code(
        is_impure_node=lambda n: _must_stay(n) and n.name not in done  # checks are made once
    )
    for module in (forward, backward):
        module.recompile()
        attach(module, memory)
    return forward, backward


@dataclass
class _Plan:
    """Roles of the nodes of one joint graph."""

    order: list[Node]
    num_fwd_outputs: int
    forward: set[Node] = field(default_factory=set)  # independent of tangents
    backward: set[Node] = field(default_factory=set)  # dependent on tangents and read
    held: set[Node] = field(default_factory=set)  # never computed again
    needed: set[Node] = field(default_factory=set)  # for what the forward returns
    returned: set[Node] = field(default_factory=set)  # by the backward

    def saved(self) -> list[Node]:
        """The nodes whose values the backward receives, in program order."""
        outputs = tree_leaves(next(n for n in self.order if n.op == "output").args)
        first = [n for n in outputs[: self.num_fwd_outputs] if isinstance(n, Node)]
        second = [n for n in outputs[self.num_fwd_outputs :] if isinstance(n, Node)]
        self.returned = set(second)
        self._split(second)
        self.held = {n for n in self.forward if not _recomputable(n)}
        written = set(self.held) | {_base(n) for n in first}
        written |= {_base(n) for n in self.forward if _read_by_library(n, self.forward)}
        self.held |= {
            _base(n)
            for n in self.forward
            if _read_by_library(n, self.backward) and _base(n) in written
            if not must_recompute(_base(n))
        }
        self.needed = self._needed(first)
        self._limit_chains()
        return self._cut(written, {_base(n) for n in self._new(first)})

    def numbers(self) -> list[Node]:
        """The arguments in which Dynamo has numbers of the user's, which are read from them again
        where the backward needs them."""
        floats = (n for n in self.order if isinstance(n.meta.get("val"), torch.SymFloat))
        read = {i for n in floats for i in n.all_input_nodes if not _is_number(i)}
        return [n for n in self.order if n.op == "placeholder" and n in read]

    def _new(self, outputs: list[Node]) -> list[Node]:
        """The results that are the caller's own: not what arguments are overwritten with."""
        descriptions = tree_leaves(self.order[-1].meta.get("desc", ()))[: self.num_fwd_outputs]
        overwriting = [isinstance(d, InputMutationAOTOutput) for d in descriptions]
        if len(overwriting) != self.num_fwd_outputs:
            return []
        leaves = tree_leaves(self.order[-1].args)[: self.num_fwd_outputs]
        others = {n for n, over in zip(leaves, overwriting, strict=True) if not over}
        return [n for n in outputs if n in others]

    def bounded(self, saved: list[Node], share: float | None, eager: EagerMemory) -> Bounded:
        """No more saved than the budget allows; nor than eager saves, calls of libraries aside."""
        found = self._budget(_recomputable_or_sum).bound(saved, eager.saved + LITTLE)
        limit = limit_of(share, self.nbytes(saved))
        if limit is None or self.nbytes(found.saved) <= limit:
            return replace(found, limit=limit)
        return self._budget(_repeatable).bound(saved, limit)

    def _budget(self, repeatable: Callable[[Node], bool]) -> Budget:
        sinks = [n for n in self._sinks() if not _is_number(n)]
        given = {n for n in self.order if n.op in ("placeholder", "get_attr")}
        rest = frozenset(given - _changed(self.order)), self.living()
        return Budget(self.order, sinks, repeatable, _recomputable, *rest)

    def nbytes(self, nodes: Sequence[Node]) -> int:
        """Bytes of the storages of tensors, but for what lives anyway."""
        held, free = {k: size for n in nodes for k, size in storages(n)}, self.living()
        return sum(size for key, size in held.items() if key not in free)

    def living(self) -> frozenset[int]:
        """Storages that live anyway: of arguments, and of the forward's results."""
        output = next(n for n in self.order if n.op == "output")
        results = tree_leaves(output.args)[: self.num_fwd_outputs]
        nodes = [n for n in self.order if n.op in ("placeholder", "get_attr")]
        nodes += [n for n in results if isinstance(n, Node)]
        return frozenset(key for n in nodes for key, _ in storages(n))

    def _sinks(self) -> list[Node]:
        """Values of the forward that the backward reads or returns."""
        read = {i for n in self.backward for i in n.all_input_nodes} | self.returned
        return [n for n in self.order if n in self.forward and n in read]

    def _split(self, outputs: list[Node]) -> None:
        tangents: set[Node] = set()
        for n in self.order:
            is_tangent = n.op == "placeholder" and "tangents" in str(n.target)
            if is_tangent or (n.op != "output" and not tangents.isdisjoint(n.all_input_nodes)):
                tangents.add(n)
        self.forward = {n for n in self.order if n not in tangents and n.op != "output"}
        read = set(outputs)
        for n in reversed(self.order):
            if n in read or (n in tangents and _must_stay(n) and n.op == "call_function"):
                read |= set(n.all_input_nodes)
                if n in tangents:
                    self.backward.add(n)

    def _needed(self, outputs: list[Node]) -> set[Node]:
        """What the forward computes for its own results."""
        needed = set(outputs)
        for n in reversed(self.order):
            if n in needed:
                needed |= set(n.all_input_nodes)
        return needed

    def _limit_chains(self) -> None:
        """Hold every value of the forward at which a chain of recomputation gets too long."""
        cost: dict[Node, float] = {}
        for n in self.order:
            if n not in self.forward or n in self.held:
                continue
            longest = max((cost.get(i, 0.0) for i in n.all_input_nodes), default=0.0)
            step = PEAK if _below_peak(n) else 1.0 if _is_transcendental(n) else CHEAP
            cost[n] = longest + step
            is_tensor = isinstance(n.meta.get("val"), torch.Tensor)
            if cost[n] > CHAIN and n in self.needed and is_tensor and not must_recompute(n):
                self.held.add(n)
                cost[n] = 0.0

    def _cut(self, written: set[Node], returned: set[Node]) -> list[Node]:
        sinks = [n for n in self._sinks() if not _is_number(n)]
        place = {n: k for k, n in enumerate(sinks)}
        reached, edges, sources = list(sinks), [], []
        for n in reached:  # grows while it is walked
            if n in self.held or n.op == "placeholder":
                sources.append(place[n])
                continue
            for i in n.all_input_nodes:
                if _is_number(i):
                    continue
                if i not in place:
                    place[i] = len(reached)
                    reached.append(i)
                edges.append((place[i], place[n]))
        changed = _changed(self.order)
        own = [n for n in reached if n not in self.needed]  # of the backward, before tangents
        read = {*sinks, *(i for n in own for i in n.all_input_nodes)}
        free = returned & {_base(n) for n in read}
        capacities = [
            LAST_RESORT if n in changed else RESULT if n in free else _cost(n, n in written)
            for n in reached
        ]
        cut = cut_vertices(capacities, edges, sources, range(len(sinks)))
        return [n for n in self.order if n in place and place[n] in cut]


def _recomputable(node: Node) -> bool:
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or _must_stay(node) or _is_random(node):
        return False
    if hint_of(node).startswith(NO_FUSE) and node.meta.get("partitioner_tag") != "is_backward":
        return False  # a pass over memory of its own
    if must_recompute(node) or _is_number(node):
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return True  # an element of a tuple
    return can_fuse(node) and rule_of(node.target) not in PASSES


def _recomputable_or_sum(node: Node) -> bool:
    """Reductions too: all that costs a pass over memory, but no library's work."""
    return _recomputable(node) or (_repeatable(node) and rule_of(node.target) is not None)


def _repeatable(node: Node) -> bool:
    """Whether running it again gives the same once more."""
    return node.op == "get_attr" or (
        node.op == "call_function" and not _must_stay(node) and not _is_random(node)
    )


def _must_stay(node: Node) -> bool:
    """Whether a node has an effect beside its results; drawing random numbers is none."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op in ("placeholder", "output") or node.is_impure()
    schema = node.target._schema
    return schema.is_mutable or not schema.returns


def _is_random(node: Node) -> bool:
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in target.tags
    )


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat))


def _is_transcendental(node: Node) -> bool:
    return any(part in TRANSCENDENTAL for part in str(node.target).split(".")[1:2])


def _below_peak(node: Node) -> bool:
    """Whether it is the distance of halves from their maximum, as in a softmax.

    The maximum is the forward's. Halves that are computed again are rounded at other places, so
    that the peak's exponential is not 1, and the next softmax of the chain multiplies the error.
    """
    maximum = any(str(i.target) == "aten.amax.default" for i in node.all_input_nodes)
    return maximum and any(
        isinstance(t := j.meta.get("val"), torch.Tensor) and t.dtype in HALVES
        for i in node.all_input_nodes
        for j in i.all_input_nodes
    )


def _read_by_library(node: Node, readers: set[Node]) -> bool:
    """Whether one of the readers runs in a library, so that the value must lie in memory."""
    for user in node.users:
        in_library = isinstance(user.target, torch._ops.OpOverload) and not can_fuse(user)
        if user in readers and in_library:
            return True
    return False


def _base(node: Node) -> Node:
    """What a chain of pure views looks at."""
    while node.op == "call_function" and str(node.target).rpartition(".")[0] in PLAIN_VIEWS:
        looked_at = node.all_input_nodes[0]
        if _numel(looked_at) != _numel(node):  # an expand that repeats elements
            return node
        node = looked_at
    return node


def _changed(order: list[Node]) -> set[Node]:
    """The arguments that AOTAutograd overwrites when the forward has run."""
    output = next(n for n in order if n.op == "output")
    descriptions = tree_leaves(output.meta.get("desc", ()))
    changed = {d.mutated_input for d in descriptions if isinstance(d, InputMutationAOTOutput)}
    return {n for n in order if n.op == "placeholder" and n.meta.get("desc") in changed}


def _cost(node: Node, written: bool) -> int:
    value = node.meta.get("val")
    if node.op == "placeholder":
        return ARGUMENT
    if not isinstance(value, torch.Tensor):
        return INFINITE
    return (2 if written else 3) * _numel(node) * value.dtype.itemsize + 1


def _numel(node: Node) -> int:
    """Elements of a tensor, as far as its sizes are known."""
    numel = 1
    for extent in node.meta["val"].shape:
        numel *= at_first_call(extent)
    return numel


PLAIN_VIEWS = frozenset(
    {
        "aten._unsafe_view",
        "aten.alias",
        "aten.detach",
        "aten.expand",
        "aten.permute",
        "aten.squeeze",
        "aten.t",
        "aten.transpose",
        "aten.unsqueeze",
        "aten.view",
    }
)
