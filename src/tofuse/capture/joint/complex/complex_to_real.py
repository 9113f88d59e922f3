"""Complex numbers as pairs of real ones, so that what computes them can be fused.

A pass over an FX graph of ATen calls, before it is partitioned. Where a complex tensor comes in, or
out of a library call, its pairs are a view (`view_as_real`); where one has to be whole, as a result
or for a library call, a kernel writes the pairs side by side. `complex_rules.py` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import Argument, map_arg

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
from tofuse.ops.aten_aliases import returns_view

aten = torch.ops.aten


def complex_to_real(gm: GraphModule, claims: ClaimPredicate = claim_nothing) -> GraphModule:
    """The graph with complex arithmetic as real; itself, changed, or as it was where there is none.

    Calls without a rule, calls that an executor claims and mere views of complex arguments stay.
    """
    strided = any(n.target is aten.as_strided.default for n in gm.graph.nodes)  # by places of pairs
    if any(is_complex(n) for n in gm.graph.nodes) and not strided:
        _Pairs(gm.graph, claims).run()
        gm.graph.eliminate_dead_code(is_impure_node=_stays)
        gm.recompile()
    return gm


def _is_shown(node: Node) -> bool:
    """Whether the program returns it, or a view of it."""
    return any(
        user.op == "output" or (returns_view(str(user.target)) and _is_shown(user))
        for user in node.users
    )


def _stays(node: Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return node.op in ("placeholder", "output")
    seeded = torch.Tag.nondeterministic_seeded in node.target.tags
    return node.target._schema.is_mutable or seeded or not node.target._schema.returns


@dataclass
class _Pairs(PairBuilder):
    claims: ClaimPredicate = claim_nothing
    pairs: dict[Node, Pair] = field(default_factory=dict)
    wholes: dict[Node, Node] = field(default_factory=dict)
    known: set[Node] = field(default_factory=set)  # complex, with a rule
    computed: set[Node] = field(default_factory=set)  # of these, all but views of others
    places: dict[Node, int] = field(default_factory=dict)  # in the program
    joined: dict[Node, Pair] = field(default_factory=dict)  # real, of what they were joined

    def run(self) -> None:
        self.places = {n: k for k, n in enumerate(self.graph.nodes)}
        for node in list(self.graph.nodes):
            if (
                node.op == "call_function"
                and not is_claimed(node, self.claims)
                and is_supported_call(node)
            ):
                self._call(node)
            elif node.op in ("call_function", "output"):
                self._make_whole(node)

    def _call(self, node: Node) -> None:
        name = operator_name(node)
        complex_inputs = {i for i in node.all_input_nodes if is_complex(i)}
        if name == "view_as_real":  # of what lies in memory it is a view
            complex_inputs &= self.computed
        if name == "getitem" and node.args[0] not in self.known:
            return  # of what a library returned
        if is_complex(node) and has_rule(node):
            self.known.add(node)
            if name not in VIEW_OPS or not self.computed.isdisjoint(node.all_input_nodes):
                self.computed.add(node)
        elif complex_inputs and name in REAL_RULES:
            self._replace(node, lambda: REAL_RULES[name](self, *node.args))
        elif name == "select" and node.args[0] in self.joined and self._is_last(node):
            self._replace(node, lambda: self._part(node))
        elif isinstance(node.meta.get("val"), Tensor) and node.meta["val"].is_neg():
            target = aten.neg.default if name == "_neg_view" else node.target
            self._replace(node, lambda: self.call(target, *node.args, **node.kwargs))
        else:
            self._make_whole(node)

    def _replace(self, node: Node, make: Callable[[], Part]) -> None:
        with self.before(node, node):
            new = self.node(make(), node.meta["val"])
            node.replace_all_uses_with(new)
        if operator_name(node) == "view_as_real":
            self.joined[new] = self.pair(node.args[0])

    def _is_last(self, node: Node) -> bool:
        dims, dim = node.args[0].meta["val"].dim(), node.args[1]  # type: ignore[union-attr]
        return dim in (-1, dims - 1)

    def _part(self, node: Node) -> Part:
        """One part of what was joined; a copy where the caller sees it, as what was joined is."""
        part = self.joined[node.args[0]][node.args[2]]  # type: ignore[index]  # a Node, a number
        return self.call(aten.clone.default, part) if _is_shown(node) else part

    def _make_whole(self, node: Node) -> None:
        for old in node.all_input_nodes:
            if old in self.computed:
                with self.before(node, old):
                    node.replace_input_with(old, self._whole(old))

    def _whole(self, node: Node) -> Node:
        """A complex tensor in memory, laid out as PyTorch has it."""
        if node not in self.computed or self._is_alone(node):
            return node
        if node not in self.wholes:
            pair = None if operator_name(node) in VIEW_OPS else self.pair(node)
            with self.stemming_from(node):
                if pair is not None:
                    self.wholes[node] = self._joined(pair, node.meta["val"])
                else:
                    args = map_arg(node.args, self._whole)
                    self.wholes[node] = self.call(node.target, *args, **node.kwargs)
        return self.wholes[node]

    def _is_alone(self, node: Node) -> bool:
        """Whether there is nothing to fuse: a single operator, which then stays."""
        if node in self.pairs or operator_name(node) not in BANDWIDTH_BOUND_OPS:
            return False
        if not self.known.isdisjoint(node.users) or not self.computed.isdisjoint(
            node.all_input_nodes
        ):
            return False
        self.known.discard(node)
        self.computed.discard(node)
        return True

    def _joined(self, pair: Pair, value: Tensor) -> Node:
        order = sorted(range(value.dim()), key=lambda d: -size_hint(value.stride()[d]))
        parts = [self.permute(self.node(p, value), order) for p in pair]
        whole = self.call(aten.view_as_complex.default, self.side_by_side(*parts))
        return self.permute(whole, [order.index(d) for d in range(len(order))])

    def pair(self, argument: Argument) -> Pair:
        """The two parts of an operand: of a complex or real tensor, or of a number."""
        if not isinstance(argument, Node):
            number = complex(argument)  # type: ignore[arg-type]  # the schema says so
            return Pair(number.real, number.imag)
        if not is_complex(argument):
            return Pair(argument, 0.0)
        for node in self._pending(argument):
            with self.stemming_from(node):
                self.pairs[node] = self._pair(node)
        return self.pairs[argument]

    def _pending(self, last: Node) -> list[Node]:
        """A node and those that its pair is made of, as far as they have none, operands first."""
        found: set[Node] = set()
        waiting = [last]
        while waiting:
            node = waiting.pop()
            if node in self.pairs or node in found:
                continue
            found.add(node)
            if node in self.known:
                waiting += [i for i in node.all_input_nodes if is_complex(i)]
        return sorted(found, key=self.places.__getitem__)

    def _pair(self, node: Node) -> Pair:
        value = node.meta["val"]
        if node not in self.known:
            if node.op == "placeholder" and "tangents" in str(node.target):
                return self._viewed(self.call(aten.resolve_conj.default, node))  # who knows
            if not value.is_conj():
                return self._viewed(node)
            first, second = self._viewed(self.call(aten._conj.default, node))
            return Pair(first, self.neg(second))
        rule = PAIR_RULES.get(operator_name(node))
        if rule is None:
            return Pair(self._likewise(node, 0), self._likewise(node, 1))
        pair = rule(self, *node.args, **node.kwargs)
        return Pair(*[self.cast(p, real_dtype_of(node)) for p in pair])

    def _viewed(self, node: Node) -> Pair:
        both, last = self.call(aten.view_as_real.default, node), node.meta["val"].dim()
        return Pair(*[self.call(aten.select.int, both, last, k) for k in range(2)])

    def _likewise(self, node: Node, k: int) -> Node:
        """A part that is made of parts as the whole is of wholes."""

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
