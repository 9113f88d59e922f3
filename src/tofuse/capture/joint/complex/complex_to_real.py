"""The pass that rewrites complex arithmetic to pairs of real tensors, which fuse.

A complex argument or library result is read as a view (`view_as_real`). For a complex result or a
library call, a kernel stacks the pair and views it as complex. The formulas are in `pair_rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import Argument, map_arg

from tofuse.analysis.reachability import reachable
from tofuse.capture.fx.aliases import has_side_effect, is_random, viewed_node
from tofuse.capture.fx.phases import is_tangent
from tofuse.capture.fx.sizes import size_hint
from tofuse.capture.joint.complex.pair_builder import (
    Pair,
    PairBuilder,
    Part,
    is_complex,
    is_supported_call,
    operator_name,
    real_dtype_of,
)
from tofuse.capture.joint.complex.pair_rules import (
    BANDWIDTH_BOUND_OPS,
    PAIR_RULES,
    PROMOTING_OPS,
    REAL_RULES,
    VIEW_OPS,
    has_rule,
)
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing, is_claimed
from tofuse.torch_internals.trees import tree_leaves

aten = torch.ops.aten


def complex_to_real(
    gm: GraphModule, claims: ClaimPredicate = claim_nothing, num_results: int | None = None
) -> GraphModule:
    """Rewrite complex arithmetic of a graph to real arithmetic, in place.

    Calls without a rule, calls that an executor claims and views of complex arguments stay. So do
    views of complex tensors among the first `num_results` outputs, which share memory with them;
    the other outputs are gradients.
    """
    # as_strided reads memory, where a pair is interleaved
    has_as_strided = any(n.target is aten.as_strided.default for n in gm.graph.nodes)
    if any(is_complex(n) for n in gm.graph.nodes) and not has_as_strided:
        _ComplexToReal(gm.graph, claims, _returned_views(gm, num_results)).run()
        gm.graph.eliminate_dead_code(is_impure_node=lambda n: has_side_effect(n) or is_random(n))
        gm.recompile()
    return gm


def _returned_views(gm: GraphModule, num_results: int | None) -> frozenset[Node]:
    """Return the views that the program returns, and the views that these view."""
    results = tree_leaves(gm.graph.output_node().args)[:num_results]
    nodes = [n for n in results if isinstance(n, Node)]
    chains = reachable(nodes, lambda n: filter(None, [viewed_node(n)]))
    return frozenset(n for n in chains if viewed_node(n) is not None)


def _is_returned(node: Node) -> bool:
    """Whether the program returns a node, or a view of it."""
    return any(
        user.op == "output" or (viewed_node(user) is not None and _is_returned(user))
        for user in node.users
    )


def _is_neg(node: Node) -> bool:
    """Whether torch negates a node's elements when they are read; our values never are."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_neg()


def _is_view(node: Node) -> bool:
    """Whether a call views a tensor; autograd also traces `_conj` of a number."""
    return operator_name(node) in VIEW_OPS and bool(node.all_input_nodes)


@dataclass
class _ComplexToReal(PairBuilder):
    claims: ClaimPredicate
    returned_views: frozenset[Node]
    pairs: dict[Node, Pair] = field(default_factory=dict)
    complex_tensors: dict[Node, Node] = field(default_factory=dict)  # built from pairs
    interleaved: dict[Node, Node] = field(default_factory=dict)  # the memory of these
    rewritten: set[Node] = field(default_factory=set)  # complex nodes that become pairs
    computed: set[Node] = field(default_factory=set)  # of these, all but views of memory
    positions: dict[Node, int] = field(default_factory=dict)  # in the program
    stacked: dict[Node, Pair] = field(default_factory=dict)  # real tensors and the parts in them
    last: dict[Node, Node] = field(default_factory=dict)  # from a node after a write to the write

    def run(self) -> None:
        self.positions = {n: k for k, n in enumerate(self.graph.nodes)}
        self._find_last_writes()
        for node in list(self.graph.nodes):
            is_call = node.op == "call_function"
            if is_call and not is_claimed(node, self.claims) and is_supported_call(node):
                self._call(node)
            elif is_call or node.op == "output":
                self._read_complex(node)

    def _find_last_writes(self) -> None:
        """Find the first write into an argument; AOTAutograd puts all such writes at the end.

        A pair is computed where a call reads it. If that call is at or after the first write, the
        pair is computed before that write, because a write may overwrite an operand of the pair.
        """
        writes = self.graph.find_nodes(op="call_function", target=aten.copy_.default)
        into_arguments = (n for n in writes if n.args[0].op == "placeholder")
        first = next(into_arguments, self.graph.output_node())
        start = self.positions[first]
        self.last = {n: first for n, k in self.positions.items() if k >= start}

    def _call(self, node: Node) -> None:
        name = operator_name(node)
        complex_inputs = {i for i in node.all_input_nodes if is_complex(i)}
        if name == "view_as_real":  # a view of a complex tensor in memory
            complex_inputs &= self.computed
            if complex_inputs and node in self.returned_views:
                self._replace(node, lambda: self._parts_in_memory(node.all_input_nodes[0]))
                return
        if name == "getitem" and node.args[0] not in self.rewritten:
            return  # a result of a library call
        if is_complex(node) and has_rule(node):
            self.rewritten.add(node)
            if not _is_view(node) or not self.computed.isdisjoint(node.all_input_nodes):
                self.computed.add(node)
        elif complex_inputs and name in REAL_RULES:
            self._replace(node, lambda: REAL_RULES[name](self, *node.args))
        elif name == "select" and node.args[0] in self.stacked and self._is_last(node):
            self._replace(node, lambda: self._stacked_part(node))
        elif name == "_neg_view" or _is_neg(node):  # the view of one is not
            target = aten.neg.default if name == "_neg_view" else node.target
            self._replace(node, lambda: self.call(target, *node.args, **node.kwargs))
        else:
            self._read_complex(node)

    def _replace(self, node: Node, make: Callable[[], Part]) -> None:
        with self.graph.inserting_before(node), self.with_origin(node):
            new = self.node(make(), node.meta["val"])
            node.replace_all_uses_with(new)
        if operator_name(node) == "view_as_real" and node not in self.returned_views:
            self.stacked[new] = self.pair(node.args[0])

    def _is_last(self, node: Node) -> bool:
        dims, dim = node.args[0].meta["val"].dim(), node.args[1]  # type: ignore[union-attr]
        return dim in (-1, dims - 1)

    def _stacked_part(self, node: Node) -> Part:
        """Return a part of a stacked pair; copied if returned, as the stacked tensor is a copy."""
        part = self.stacked[node.args[0]][node.args[2]]  # type: ignore[index]  # a Node, a number
        return self.call(aten.clone.default, part) if _is_returned(node) else part

    def _read_complex(self, node: Node) -> None:
        """Let a node read complex tensors instead of pairs."""
        for old in node.all_input_nodes:
            if old in self.computed:
                place = self.last.get(node, node)
                with self.graph.inserting_before(place), self.with_origin(old):
                    node.replace_input_with(old, self._complex_tensor(old))

    def _complex_tensor(self, node: Node) -> Node:
        """Return a node's complex tensor in memory, with PyTorch's strides."""
        if node not in self.computed or self._stays_alone(node):
            return node
        if node not in self.complex_tensors:
            with self.with_origin(node):
                if _is_view(node):
                    args = map_arg(node.args, self._complex_tensor)
                    self.complex_tensors[node] = self.call(node.target, *args, **node.kwargs)
                else:
                    self.complex_tensors[node] = self._view_as_complex(node)
        return self.complex_tensors[node]

    def _stays_alone(self, node: Node) -> bool:
        """Whether a single operator has nothing to fuse with; it then stays complex."""
        if node in self.pairs or operator_name(node) not in BANDWIDTH_BOUND_OPS:
            return False
        if not self.rewritten.isdisjoint(node.users) or not self.computed.isdisjoint(
            node.all_input_nodes
        ):
            return False
        self.rewritten.discard(node)
        self.computed.discard(node)
        return True

    def _view_as_complex(self, node: Node) -> Node:
        stack, order = self._interleaved(node)
        return self.permute(self.call(aten.view_as_complex.default, stack), order)

    def _parts_in_memory(self, node: Node) -> Node:
        """Return the parts of a node as a view of its complex tensor."""
        if _is_view(node):
            return self.call(aten.view_as_real.default, self._complex_tensor(node))
        self.complex_tensors.setdefault(node, self._view_as_complex(node))
        stack, order = self._interleaved(node)
        return self.permute(stack, [*order, len(order)])

    def _interleaved(self, node: Node) -> tuple[Node, list[int]]:
        """Return the stacked parts in the order of memory, and where the dimensions are in it."""
        value = node.meta["val"]
        order = sorted(range(value.dim()), key=lambda d: -size_hint(value.stride()[d]))
        if node not in self.interleaved:
            parts = [self.permute(self.node(p, value), order) for p in self.pair(node)]
            self.interleaved[node] = self.stack_last(*parts)
        return self.interleaved[node], [order.index(d) for d in range(len(order))]

    def pair(self, argument: Argument) -> Pair:
        """Return the two parts of an operand: of a complex or real tensor, or of a number."""
        if not isinstance(argument, Node):
            number = complex(argument)  # type: ignore[arg-type]  # the schema says so
            return Pair(number.real, number.imag)
        if not is_complex(argument):
            return Pair(argument, 0.0)
        for node in () if argument in self.pairs else self._pending(argument):
            with self.with_origin(node):
                self.pairs[node] = self._pair(node)
        return self.pairs[argument]

    def _pending(self, last: Node) -> list[Node]:
        """Return a node and its transitive operands that have no pair yet, operands first."""

        def operands(node: Node) -> list[Node]:
            read = node.all_input_nodes if node in self.rewritten else ()
            return [i for i in read if is_complex(i) and i not in self.pairs]

        return sorted(reachable([last], operands), key=self.positions.__getitem__)

    def _pair(self, node: Node) -> Pair:
        value = node.meta["val"]
        if node not in self.rewritten:
            if is_tangent(node):
                # a tangent may be conjugated at run time
                return self._view_as_real(self.call(aten.resolve_conj.default, node))
            if not value.is_conj():
                return self._view_as_real(node)
            re, im = self._view_as_real(self.call(aten._conj.default, node))
            return Pair(re, self.neg(im))
        rule = PAIR_RULES.get(operator_name(node))
        if rule is None:
            return Pair(self._partwise(node, 0), self._partwise(node, 1))
        pair = rule(self, *node.args, **node.kwargs)
        return Pair(*[self.cast(p, real_dtype_of(node)) for p in pair])

    def _view_as_real(self, node: Node) -> Pair:
        return self.unstack_last(self.call(aten.view_as_real.default, node))

    def _partwise(self, node: Node, k: int) -> Node:
        """Apply a node's operator to the k-th parts of its operands."""

        def part(i: Node) -> Node:
            mixed = operator_name(node) in PROMOTING_OPS and isinstance(i.meta["val"], Tensor)
            if not is_complex(i) and not mixed:
                return i
            whole = self.node(self.pair(i)[k], i.meta["val"])
            return self.tensor(self.cast(whole, real_dtype_of(node)), whole)

        args, kwargs = map_arg(node.args, part), map_arg(node.kwargs, part)
        if "dtype" in kwargs and kwargs["dtype"] is not None:
            kwargs = {**kwargs, "dtype": real_dtype_of(node)}
        return self.call(node.target, *args, **kwargs)
