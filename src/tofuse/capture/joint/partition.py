"""The pass that partitions a joint graph into forward and backward and chooses saved tensors.

It is a minimum cut, as in torch's partitioner, but of bytes alone and with these rules:

- Ops that fuse are recomputed rather than saved. Library calls, reductions and random seeds are
  never recomputed.
- Arguments of the forward are nearly free, because they live in the backward, too. Arguments that
  the program mutates are saved only if nothing else is possible.
- Results of the forward that the backward reads are nearly free and preferred: eager saves them.
- A product is recomputed, with the reductions of its rows, if kernels may have it and all its
  readers, and its result is much larger than its factors (`recomputed_products`).
- So are extremes of half-precision values that the backward computes again: otherwise forward and
  backward would have to round these values alike.
- A value that the forward writes to memory and a library call of the backward reads (an operand
  of a matrix product) is saved: recomputing it would cost a pass over memory.
- Saving a value that the forward would otherwise not write costs half as much again.
- A value is saved if it is more than MAX_RECOMPUTE_CHAIN operations, or two softmaxes in half
  precision, away from the last saved one.
- If more is saved than eager saves or `memory_budget` allows, values are rematerialized (`remat`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import has_side_effect, is_random, node_storages, viewed_node
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.capture.fx.phases import (
    backward_only_nodes,
    propagate_version_checks,
    reads_memory_of,
    traced_in_backward,
    with_operands,
    written_in_backward,
)
from tofuse.capture.fx.sizes import SYMBOLIC, size_hint
from tofuse.capture.joint.mincut import INFINITE, cut_vertices
from tofuse.capture.joint.recomputed_products import (
    FindRecomputable,
    RecomputedProducts,
    recomputed_products,
)
from tofuse.capture.joint.remat import Rematerializer, RematResult
from tofuse.capture.lower.lowerable import is_lowerable
from tofuse.capture.lower.lowering_rules import lowering_rule
from tofuse.capture.lower.rules.depthwise_convolution import DEPTHWISE_RULES
from tofuse.capture.lower.rules.pooling import POOLING_RULES
from tofuse.capture.lower.rules.reductions import REDUCTION_RULES
from tofuse.cost.thresholds import (
    ARGUMENT_PRICE,
    CHEAP_OP,
    HALF_SOFTMAX,
    MAX_RECOMPUTE_CHAIN,
    PEAK_TOLERANCE,
    RESULT_PRICE,
)
from tofuse.hints import fusion_hint_of
from tofuse.ir.fusion_hints import NO_FUSE
from tofuse.ops.table import TRANSCENDENTAL
from tofuse.torch_internals.autograd_compiler import (
    InputMutationAOTOutput,
    cleanup_recompute_tags,
    extract_forward_backward,
    must_recompute,
)
from tofuse.torch_internals.fake_tensors import FakeScriptObject
from tofuse.torch_internals.operators import OpOverload
from tofuse.torch_internals.trees import tree_leaves

aten = torch.ops.aten
HALF_DTYPES = (torch.float16, torch.bfloat16)
MUTATED_ARGUMENT_PRICE = 1 << 50
EXTREMES = frozenset((aten.amax.default, aten.amin.default, aten.max.dim, aten.min.dim))
# Rules of ops that read all of their operand.
MEMORY_PASS_RULES = frozenset(
    (*REDUCTION_RULES.values(), *POOLING_RULES.values(), *DEPTHWISE_RULES.values())
)


def clean_recompute_tags(joint: GraphModule) -> GraphModule:
    """Complete the tags of `torch.utils.checkpoint` on the nodes of a joint graph, in place."""
    return cleanup_recompute_tags(joint, is_default_partition=False)


def partition(
    joint: GraphModule,
    eager: EagerMemory,
    *,
    num_fwd_outputs: int,
    budget: float | None = None,
    find_recomputable: FindRecomputable | None = None,
) -> tuple[GraphModule, GraphModule, EagerMemory]:
    """Return the forward and the backward graph, and the memory in eager and in this partition.

    `find_recomputable`: see `recomputed_products`.
    """
    order = list(joint.graph.nodes)
    recomputed = recomputed_products(joint, find_recomputable)
    partitioner = _Partitioner(order, num_fwd_outputs, recomputed)
    result = partitioner.rematerialize(partitioner.choose_saved(), budget, eager)
    saved, free = result.saved, partitioner.free_storages
    memory = replace(
        eager,
        our_saved_bytes=result.saved_bytes,
        budget_bytes=result.limit,
        recomputed_calls=result.recomputed_calls,
        saved_arguments=tuple(
            n.name for n in saved if any(key not in free for key, _ in node_storages(n))
        ),
    )
    tensors = [n for n in saved if isinstance(n.meta.get("val"), torch.Tensor)]
    tensors += [n for n in partitioner.symbolic_float_arguments() if n not in saved]
    tensors += [n for n in partitioner.opaque_objects() if n not in tensors]
    # Numbers that depend on data are saved, too; others are recomputed from the integers.
    numbers = [
        n
        for n in partitioner.order
        if n in partitioner.forward_nodes
        and (
            isinstance(n.meta.get("val"), torch.SymInt)
            or (_is_symbolic_number(n) and n.meta.get("unbacked_bindings"))
        )
    ]
    propagate_version_checks(partitioner.order, partitioner.written)
    forward, backward = extract_forward_backward(
        joint, tensors, saved_sym_nodes=numbers, num_fwd_outputs=num_fwd_outputs
    )

    def has_effect_in(phase: set[Node]) -> Callable[[Node], bool]:
        calls = {n.name for n in phase if n.op == "call_function"}
        return lambda n: has_side_effect(n) and (n.op != "call_function" or n.name in calls)

    forward.graph.eliminate_dead_code(is_impure_node=has_effect_in(partitioner.forward_nodes))
    backward.graph.eliminate_dead_code(is_impure_node=has_effect_in(partitioner.backward_nodes))
    for module in (forward, backward):
        module.recompile()
    return forward, backward, memory


class _Partitioner:
    """Classifies the nodes of a joint graph and chooses the saved values."""

    def __init__(
        self, order: list[Node], num_fwd_outputs: int, recomputed: RecomputedProducts
    ) -> None:
        self.order, output = order, order[-1]
        self.in_kernels = recomputed.in_kernels
        leaves, descriptions = tree_leaves(output.args), tree_leaves(output.meta.get("desc", ()))
        self.results = [n for n in leaves[:num_fwd_outputs] if isinstance(n, Node)]
        self.gradients = {n for n in leaves[num_fwd_outputs:] if isinstance(n, Node)}
        described = list(zip(leaves, descriptions, strict=False))[:num_fwd_outputs]
        self.fresh_results = [  # that are not copied into mutated arguments
            n
            for n, d in described
            if isinstance(n, Node) and not isinstance(d, InputMutationAOTOutput)
        ]
        self.arguments = [n for n in order if n.op in ("placeholder", "get_attr")]
        mutated = {d.mutated_input for d in descriptions if isinstance(d, InputMutationAOTOutput)}
        self.mutated_arguments = {n for n in self.arguments if n.meta.get("desc") in mutated}
        self.written = written_in_backward(order)
        self.mutated_arguments |= self.written
        # the storages of arguments and results cost nothing
        free = (*self.arguments, *self.results)
        self.free_storages = frozenset(key for n in free for key, _ in node_storages(n))
        late = backward_only_nodes(order)
        effects = {n for n in late if n.op == "call_function" and has_side_effect(n)}
        self.forward_nodes = {n for n in order if n not in late and n.op != "output"}
        self.backward_nodes = late & with_operands(self.gradients | effects)  # not dead
        read = {i for n in self.backward_nodes for i in n.all_input_nodes} | self.gradients
        self.read_by_backward = self.forward_nodes & read
        # a backward that runs a second time would read what the first has written
        self.reads_written = {n for n in self.forward_nodes if reads_memory_of(n, self.written)}
        self.not_recomputed = {
            n
            for n in self.forward_nodes
            if not (_is_recomputable(n) or n in recomputed.nodes or _is_half_extreme(n))
        }
        self.not_recomputed |= self.reads_written
        self.needed_by_results = with_operands(self.results)

    def choose_saved(self) -> list[Node]:
        """Return the nodes whose values the backward receives, in program order."""
        written = set(self.not_recomputed) | {_view_base(n) for n in self.results}
        forward = self.forward_nodes - self.in_kernels
        backward = self.backward_nodes - self.in_kernels
        written |= {_view_base(n) for n in self.forward_nodes if _read_by_library(n, forward)}
        self.not_recomputed |= {
            _view_base(n)
            for n in self.forward_nodes
            if _read_by_library(n, backward) and _view_base(n) in written
            if not must_recompute(_view_base(n))
        }
        self._limit_recompute_chains()
        return self._cut(written, {_view_base(n) for n in self.fresh_results})

    def symbolic_float_arguments(self) -> list[Node]:
        """Return the tensor arguments that symbolic floats are read from.

        The backward reads the floats from them again.
        """
        floats = (n for n in self.order if isinstance(n.meta.get("val"), torch.SymFloat))
        sources = {i for n in floats for i in n.all_input_nodes if not _is_symbolic_number(i)}
        return [n for n in self.order if n.op == "placeholder" and n in sources]

    def opaque_objects(self) -> list[Node]:
        """Return the objects, such as the mesh of a DTensor, that the backward reads or returns."""
        objects = (n for n in self.order if isinstance(n.meta.get("val"), FakeScriptObject))
        return [n for n in objects if n in self.read_by_backward]

    def rematerialize(
        self, saved: list[Node], budget: float | None, eager: EagerMemory
    ) -> RematResult:
        """Reduce the saved values to the budget, and to eager's unless library calls are needed."""
        remat = self._rematerializer(_is_recomputable_or_reduction)
        result = remat.rematerialize(saved, eager.saved_bytes + PEAK_TOLERANCE)
        if budget is not None and budget <= 1:  # a fraction
            budget *= remat.nbytes(saved)
        limit = None if budget is None else int(budget)
        if limit is None or result.saved_bytes <= limit:
            return replace(result, limit=limit)
        return self._rematerializer(_is_repeatable).rematerialize(saved, limit)

    def _rematerializer(self, can_recompute: Callable[[Node], bool]) -> Rematerializer:
        readable = frozenset(self.arguments) - self.mutated_arguments
        return Rematerializer(
            self.order,
            self._sinks(),
            lambda n: can_recompute(n) and n not in self.reads_written,
            _is_recomputable,
            readable,
            self.free_storages,
        )

    def _sinks(self) -> list[Node]:
        """Return the forward's tensors that the backward reads or returns."""
        return [n for n in self.order if n in self.read_by_backward and not _is_symbolic_number(n)]

    def _limit_recompute_chains(self) -> None:
        """Save every forward value at which a chain of recomputation gets too long."""
        length: dict[Node, float] = {}
        for n in self.order:
            if n not in self.forward_nodes or n in self.not_recomputed:
                continue
            longest = max((length.get(i, 0.0) for i in n.all_input_nodes), default=0.0)
            length[n] = longest + _chain_length(n)
            is_tensor = isinstance(n.meta.get("val"), torch.Tensor)
            can_save = n in self.needed_by_results and is_tensor and not must_recompute(n)
            if length[n] > MAX_RECOMPUTE_CHAIN and can_save:
                self.not_recomputed.add(n)
                length[n] = 0.0

    def _cut(self, written: set[Node], results: set[Node]) -> list[Node]:
        """Return the minimum cut between recomputation sources and the backward's reads."""
        sinks = self._sinks()
        reached, found, edges, sources = list(sinks), set(sinks), [], []
        for n in reached:  # grows while it is walked
            if n in self.not_recomputed or n.op == "placeholder":
                sources.append(n)
                continue
            inputs = [i for i in n.all_input_nodes if not _is_symbolic_number(i)]
            edges += [(i, n) for i in inputs]
            reached += [i for i in inputs if i not in found]
            found.update(inputs)
        backward_only = [n for n in reached if n not in self.needed_by_results]
        read = {*sinks, *(i for n in backward_only for i in n.all_input_nodes)}
        read_results = results & {_view_base(n) for n in read}

        def capacity(n: Node) -> int:
            if n in self.mutated_arguments:
                return MUTATED_ARGUMENT_PRICE
            return RESULT_PRICE if n in read_results else _price(n, n in written)

        cut = cut_vertices({n: capacity(n) for n in reached}, edges, sources, sinks)
        return [n for n in self.order if n in cut]


def _is_recomputable(node: Node) -> bool:
    """Whether recomputing a node fuses into kernels of the backward."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or has_side_effect(node) or is_random(node):
        return False
    is_separate_kernel = fusion_hint_of(node).startswith(NO_FUSE)
    if is_separate_kernel and not traced_in_backward(node):
        return False
    if must_recompute(node) or _is_symbolic_number(node):
        return True
    if not isinstance(node.target, OpOverload):
        return True  # a getitem
    return is_lowerable(node) and lowering_rule(node.target) not in MEMORY_PASS_RULES


def _is_recomputable_or_reduction(node: Node) -> bool:
    """Whether recomputing a node costs at most passes over memory, and no library call."""
    return _is_recomputable(node) or (
        _is_repeatable(node) and lowering_rule(node.target) is not None
    )


def _is_repeatable(node: Node) -> bool:
    """Whether a second run of a node gives the same value."""
    return node.op == "get_attr" or (
        node.op == "call_function" and not has_side_effect(node) and not is_random(node)
    )


def _is_symbolic_number(node: Node) -> bool:
    """Whether a node's value is a symbolic number."""
    return isinstance(node.meta.get("val"), SYMBOLIC)


def _chain_length(node: Node) -> float:
    if _is_half_softmax_difference(node):
        return HALF_SOFTMAX
    is_transcendental = any(part in TRANSCENDENTAL for part in str(node.target).split(".")[1:2])
    return 1.0 if is_transcendental else CHEAP_OP


def _is_half_extreme(node: Node) -> bool:
    """Whether a node is an extreme of values that kernels compute in half precision.

    If the backward computes these values again, it computes the extreme, too: it has them in
    registers, and the forward would have to round them to find an extreme among them.
    """
    if node.target not in EXTREMES:
        return False
    operand = _unconverted(node.all_input_nodes[0])
    is_half = operand.meta["val"].dtype in HALF_DTYPES
    return is_half and operand.op == "call_function" and _is_recomputable(operand)


def _unconverted(node: Node) -> Node:
    """Return what a node is a view or a conversion of."""
    while node.target is aten._to_copy.default or viewed_node(node) is not None:
        node = node.all_input_nodes[0]
    return node


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
    return any(
        isinstance(user.target, OpOverload) and not is_lowerable(user)
        for user in node.users
        if user in readers
    )


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
    return math.prod(map(size_hint, node.meta["val"].shape))
