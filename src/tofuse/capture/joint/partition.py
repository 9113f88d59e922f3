"""The pass that partitions a joint graph into forward and backward and chooses saved tensors.

It is a minimum cut, as in torch's partitioner, but of bytes alone and with these rules:

- Ops that fuse are recomputed rather than saved. Library calls, reductions and random seeds are
  never recomputed.
- Arguments of the forward are nearly free, because they live in the backward, too. Arguments that
  the program mutates are saved only if nothing else is possible.
- Results of the forward that the backward reads are nearly free and preferred: eager saves them.
- A value that the forward writes to memory and a library call of the backward reads (an operand
  of a matrix product) is saved: recomputing it would cost a pass over memory.
- Saving a value that the forward would otherwise not write costs half as much again.
- A value is saved if it is more than MAX_RECOMPUTE_CHAIN operations, or two softmaxes in half
  precision, away from the last saved one.
- If more is saved than eager saves or `memory_budget` allows, values are rematerialized (`remat`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import has_side_effect, node_storages, viewed_node
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.capture.fx.sizes import size_hint
from tofuse.capture.joint.mincut import INFINITE, cut_vertices
from tofuse.capture.joint.recomputable import (
    is_recomputable,
    is_recomputable_or_reduction,
    is_repeatable,
    is_symbolic_number,
)
from tofuse.capture.joint.remat import Rematerializer, RematResult, budget_bytes
from tofuse.capture.lower.lowerable import is_lowerable
from tofuse.cost.thresholds import (
    ARGUMENT_PRICE,
    CHEAP_OP,
    HALF_SOFTMAX,
    MAX_RECOMPUTE_CHAIN,
    PEAK_TOLERANCE,
    RESULT_PRICE,
)
from tofuse.ops.table import TRANSCENDENTAL
from tofuse.torch_internals.autograd_compiler import (
    InputMutationAOTOutput,
    cleanup_recompute_tags,
    extract_forward_backward,
    has_recomputable_ops,
    must_recompute,
)
from tofuse.torch_internals.operators import OpOverload
from tofuse.torch_internals.trees import tree_leaves

HALF_DTYPES = (torch.float16, torch.bfloat16)
MUTATED_ARGUMENT_PRICE = 1 << 50


def clean_recompute_tags(joint: GraphModule) -> GraphModule:
    """Complete the tags of `torch.utils.checkpoint` on the nodes of a joint graph, in place."""
    if has_recomputable_ops(joint):
        return cleanup_recompute_tags(joint, is_default_partition=False)
    return joint


def partition(
    joint: GraphModule, eager: EagerMemory, *, num_fwd_outputs: int, budget: float | None = None
) -> tuple[GraphModule, GraphModule, EagerMemory]:
    """Return the forward and the backward graph, and the memory in eager and in this partition."""
    partitioner = _Partitioner(list(joint.graph.nodes), num_fwd_outputs)
    result = partitioner.rematerialize(partitioner.choose_saved(), budget, eager)
    saved, free = result.saved, partitioner.free_storages()
    memory = replace(
        eager,
        our_saved_bytes=partitioner.nbytes(saved),
        budget_bytes=result.limit,
        recomputed_calls=result.recomputed_calls,
        saved_arguments=tuple(
            n.name for n in saved if any(key not in free for key, _ in node_storages(n))
        ),
    )
    tensors = [n for n in saved if isinstance(n.meta.get("val"), torch.Tensor)]
    tensors += [n for n in partitioner.symbolic_float_arguments() if n not in saved]
    # Symbolic floats are recomputed from the integers.
    integers = [
        n
        for n in partitioner.order
        if n in partitioner.forward_nodes and isinstance(n.meta.get("val"), torch.SymInt)
    ]
    forward, backward = extract_forward_backward(
        joint, tensors, saved_sym_nodes=integers, num_fwd_outputs=num_fwd_outputs
    )
    forward_calls = {n.name for n in partitioner.forward_nodes if n.op == "call_function"}
    forward.graph.eliminate_dead_code(is_impure_node=has_side_effect)
    backward.graph.eliminate_dead_code(
        is_impure_node=lambda n: has_side_effect(n) and n.name not in forward_calls
    )
    for module in (forward, backward):
        module.recompile()
    return forward, backward, memory


@dataclass
class _Partitioner:
    """Classifies the nodes of a joint graph and chooses the saved values."""

    order: list[Node]
    num_fwd_outputs: int
    forward_nodes: set[Node] = field(default_factory=set)  # independent of tangents
    backward_nodes: set[Node] = field(default_factory=set)  # dependent on tangents, not dead
    not_recomputed: set[Node] = field(default_factory=set)
    needed_by_outputs: set[Node] = field(default_factory=set)  # of the forward
    backward_outputs: set[Node] = field(default_factory=set)

    def choose_saved(self) -> list[Node]:
        """Return the nodes whose values the backward receives, in program order."""
        outputs = tree_leaves(next(n for n in self.order if n.op == "output").args)
        results = [n for n in outputs[: self.num_fwd_outputs] if isinstance(n, Node)]
        gradients = [n for n in outputs[self.num_fwd_outputs :] if isinstance(n, Node)]
        self.backward_outputs = set(gradients)
        self._classify(gradients)
        self.not_recomputed = {n for n in self.forward_nodes if not is_recomputable(n)}
        written = set(self.not_recomputed) | {_view_base(n) for n in results}
        written |= {
            _view_base(n) for n in self.forward_nodes if _read_by_library(n, self.forward_nodes)
        }
        self.not_recomputed |= {
            _view_base(n)
            for n in self.forward_nodes
            if _read_by_library(n, self.backward_nodes) and _view_base(n) in written
            if not must_recompute(_view_base(n))
        }
        self.needed_by_outputs = self._find_needed(results)
        self._limit_recompute_chains()
        return self._cut(written, {_view_base(n) for n in self._fresh_outputs(results)})

    def symbolic_float_arguments(self) -> list[Node]:
        """Return the tensor arguments that symbolic floats are read from.

        The backward reads the floats from them again.
        """
        floats = (n for n in self.order if isinstance(n.meta.get("val"), torch.SymFloat))
        sources = {i for n in floats for i in n.all_input_nodes if not is_symbolic_number(i)}
        return [n for n in self.order if n.op == "placeholder" and n in sources]

    def _fresh_outputs(self, outputs: list[Node]) -> list[Node]:
        """Return the outputs that are not copied into mutated arguments."""
        descriptions = tree_leaves(self.order[-1].meta.get("desc", ()))[: self.num_fwd_outputs]
        mutations = [isinstance(d, InputMutationAOTOutput) for d in descriptions]
        if len(mutations) != self.num_fwd_outputs:
            return []
        leaves = tree_leaves(self.order[-1].args)[: self.num_fwd_outputs]
        fresh = {n for n, is_mutation in zip(leaves, mutations, strict=True) if not is_mutation}
        return [n for n in outputs if n in fresh]

    def rematerialize(
        self, saved: list[Node], budget: float | None, eager: EagerMemory
    ) -> RematResult:
        """Reduce the saved values to the budget, and to eager's unless library calls are needed."""
        remat = self._rematerializer(is_recomputable_or_reduction)
        result = remat.rematerialize(saved, eager.saved_bytes + PEAK_TOLERANCE)
        limit = budget_bytes(budget, self.nbytes(saved))
        if limit is None or self.nbytes(result.saved) <= limit:
            return replace(result, limit=limit)
        return self._rematerializer(is_repeatable).rematerialize(saved, limit)

    def _rematerializer(self, can_recompute: Callable[[Node], bool]) -> Rematerializer:
        sinks = [n for n in self._sinks() if not is_symbolic_number(n)]
        arguments = {n for n in self.order if n.op in ("placeholder", "get_attr")}
        return Rematerializer(
            self.order,
            sinks,
            can_recompute,
            is_recomputable,
            frozenset(arguments - _mutated_arguments(self.order)),
            self.free_storages(),
        )

    def nbytes(self, nodes: Sequence[Node]) -> int:
        """Return the bytes of the storages that live only for the backward."""
        sizes, free = {k: size for n in nodes for k, size in node_storages(n)}, self.free_storages()
        return sum(size for key, size in sizes.items() if key not in free)

    def free_storages(self) -> frozenset[int]:
        """Return the storages of arguments and of the forward's results, which cost nothing."""
        output = next(n for n in self.order if n.op == "output")
        results = tree_leaves(output.args)[: self.num_fwd_outputs]
        nodes = [n for n in self.order if n.op in ("placeholder", "get_attr")]
        nodes += [n for n in results if isinstance(n, Node)]
        return frozenset(key for n in nodes for key, _ in node_storages(n))

    def _sinks(self) -> list[Node]:
        """Return the forward's values that the backward reads or returns."""
        read = {i for n in self.backward_nodes for i in n.all_input_nodes} | self.backward_outputs
        return [n for n in self.order if n in self.forward_nodes and n in read]

    def _classify(self, gradients: list[Node]) -> None:
        """Find the forward nodes and the live backward nodes."""
        dependent: set[Node] = set()  # on tangents
        for n in self.order:
            is_tangent = n.op == "placeholder" and "tangents" in str(n.target)
            if is_tangent or (n.op != "output" and not dependent.isdisjoint(n.all_input_nodes)):
                dependent.add(n)
        self.forward_nodes = {n for n in self.order if n not in dependent and n.op != "output"}
        live = set(gradients)
        for n in reversed(self.order):
            if n in live or (n in dependent and has_side_effect(n) and n.op == "call_function"):
                live |= set(n.all_input_nodes)
                if n in dependent:
                    self.backward_nodes.add(n)

    def _find_needed(self, outputs: list[Node]) -> set[Node]:
        """Return the nodes that the outputs depend on."""
        needed = set(outputs)
        for n in reversed(self.order):
            if n in needed:
                needed |= set(n.all_input_nodes)
        return needed

    def _limit_recompute_chains(self) -> None:
        """Save every forward value at which a chain of recomputation gets too long."""
        length: dict[Node, float] = {}
        for n in self.order:
            if n not in self.forward_nodes or n in self.not_recomputed:
                continue
            longest = max((length.get(i, 0.0) for i in n.all_input_nodes), default=0.0)
            length[n] = longest + _chain_length(n)
            is_tensor = isinstance(n.meta.get("val"), torch.Tensor)
            can_save = n in self.needed_by_outputs and is_tensor and not must_recompute(n)
            if length[n] > MAX_RECOMPUTE_CHAIN and can_save:
                self.not_recomputed.add(n)
                length[n] = 0.0

    def _cut(self, written: set[Node], results: set[Node]) -> list[Node]:
        """Return the minimum cut between recomputation sources and the backward's reads."""
        sinks = [n for n in self._sinks() if not is_symbolic_number(n)]
        vertex = {n: k for k, n in enumerate(sinks)}
        reached, edges, sources = list(sinks), [], []
        for n in reached:  # grows while it is walked
            if n in self.not_recomputed or n.op == "placeholder":
                sources.append(vertex[n])
                continue
            for i in n.all_input_nodes:
                if is_symbolic_number(i):
                    continue
                if i not in vertex:
                    vertex[i] = len(reached)
                    reached.append(i)
                edges.append((vertex[i], vertex[n]))
        mutated = _mutated_arguments(self.order)
        backward_only = [n for n in reached if n not in self.needed_by_outputs]
        read = {*sinks, *(i for n in backward_only for i in n.all_input_nodes)}
        read_results = results & {_view_base(n) for n in read}

        def capacity(n: Node) -> int:
            if n in mutated:
                return MUTATED_ARGUMENT_PRICE
            return RESULT_PRICE if n in read_results else _price(n, n in written)

        capacities = [capacity(n) for n in reached]
        cut = cut_vertices(capacities, edges, sources, range(len(sinks)))
        return [n for n in self.order if n in vertex and vertex[n] in cut]


def _is_transcendental(node: Node) -> bool:
    return any(part in TRANSCENDENTAL for part in str(node.target).split(".")[1:2])


def _chain_length(node: Node) -> float:
    if _is_half_softmax_difference(node):
        return HALF_SOFTMAX
    return 1.0 if _is_transcendental(node) else CHEAP_OP


def _is_half_softmax_difference(node: Node) -> bool:
    """Whether a node subtracts the maximum of half-precision values, as in a softmax.

    Recomputed half precision is rounded at other points than the saved maximum. The largest
    exponential is then not 1, and the next softmax of the chain multiplies the error.
    """
    maximum = any(str(i.target) == "aten.amax.default" for i in node.all_input_nodes)
    return maximum and any(
        isinstance(t := j.meta.get("val"), torch.Tensor) and t.dtype in HALF_DTYPES
        for i in node.all_input_nodes
        for j in i.all_input_nodes
    )


def _read_by_library(node: Node, readers: set[Node]) -> bool:
    """Whether one of the readers is a library call, so that the value must be in memory."""
    for user in node.users:
        in_library = isinstance(user.target, OpOverload) and not is_lowerable(user)
        if user in readers and in_library:
            return True
    return False


def _view_base(node: Node) -> Node:
    """Return the base of a chain of views that keep all elements."""
    while (operand := viewed_node(node)) is not None and _keeps_all_elements(node, operand):
        node = operand
    return node


def _keeps_all_elements(view: Node, operand: Node) -> bool:
    """Whether a view is one tensor of all elements of its operand; `as_strided` may repeat some."""
    if not isinstance(view.meta["val"], torch.Tensor):  # `split` or `unbind`
        return False
    return _numel(view) == _numel(operand) and view.target is not torch.ops.aten.as_strided.default


def _mutated_arguments(order: list[Node]) -> set[Node]:
    """Return the arguments that AOTAutograd overwrites after the forward."""
    output = next(n for n in order if n.op == "output")
    descriptions = tree_leaves(output.meta.get("desc", ()))
    mutated = {d.mutated_input for d in descriptions if isinstance(d, InputMutationAOTOutput)}
    return {n for n in order if n.op == "placeholder" and n.meta.get("desc") in mutated}


def _price(node: Node, is_written: bool) -> int:
    """Return the price of saving a node: half as much again if the forward does not write it."""
    value = node.meta.get("val")
    if node.op == "placeholder":
        return ARGUMENT_PRICE
    if not isinstance(value, torch.Tensor):
        return INFINITE
    return (2 if is_written else 3) * _numel(node) * value.dtype.itemsize + 1


def _numel(node: Node) -> int:
    """Return the elements of a node's tensor, by its size hints."""
    numel = 1
    for extent in node.meta["val"].shape:
        numel *= size_hint(extent)
    return numel
