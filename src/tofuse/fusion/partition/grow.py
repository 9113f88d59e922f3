"""Grow groups of ops: merge producers with consumers while the kernel is legal and pays off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, auto

from tofuse.analysis.reachability import reachable
from tofuse.cost.kernel_cost import Evaluation
from tofuse.cost.thresholds import (
    MIN_GROWTH_OF_LARGE_KERNEL,
    MIN_OPS_OF_LARGE_KERNEL,
    SEPARATE_KERNELS_TIME_SHARE,
)
from tofuse.fusion.concat.concat_cost import is_concat_or_pad
from tofuse.fusion.concat.eliminate_concats import library_call_rule
from tofuse.fusion.partition.elementwise_fusion import ElementwiseIndex
from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.fusion.partition.groups import Group, Groups
from tofuse.fusion.partition.merge_legality import MergeLegality
from tofuse.fusion.partition.profitability import (
    is_inefficient,
    loop_structure_changes,
    merge_too_costly,
    recomputes_too_much,
)
from tofuse.ir.dims import size_hint
from tofuse.ir.fusion_hints import fusion_requested
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Side
from tofuse.ir.rules import Reason, Rule
from tofuse.ops.table import OPS, Pattern

# What may join the core of a group from outside of it: several products, and one weight's decoding.
FEEDING = {Pattern.ELEMENTWISE, Pattern.BROADCAST, Pattern.SOURCE, Pattern.RANDOM}
DECODING = {*FEEDING, Pattern.VIEW, Pattern.CONCAT, Pattern.GATHER} - {Pattern.RANDOM}
STEPWISE = {Pattern.SCAN, Pattern.RECURRENCE}  # whose loops carry values


def grow(
    index: GraphIndex,
    legality: MergeLegality,
    rounded: frozenset[str],
    sides: Mapping[str, Side],
) -> Growth:
    """Return groups grown optimistically if every kernel is accepted, otherwise step by step."""
    growth = Growth(index, legality, rounded, sides)
    if not growth.grow_optimistically():
        growth.grow_checked()
        if growth.trust_inefficient():
            growth.grow_checked()
    return growth


class Check(Enum):
    """What is checked of a merge before it is made."""

    LEGALITY = auto()
    KERNEL = auto()  # and the merged kernel, unless it is trusted or extends a kernel by an op


@dataclass(eq=False)
class Growth:
    """Groups as they grow, the merges made, and the reasons for the merges not made."""

    index: GraphIndex
    legality: MergeLegality
    rounded: frozenset[str]  # names of the values that kernels round
    sides: Mapping[str, Side]  # of results, by their names
    check: Check = Check.LEGALITY
    groups: Groups = field(init=False)
    elementwise: ElementwiseIndex = field(init=False)
    merges: list[tuple[Op, Op]] = field(default_factory=list)  # in order; an op of each group
    rejections: dict[tuple[Op, Op], Reason] = field(default_factory=dict)
    trusted: dict[Op, int] = field(default_factory=dict)  # ops with one number may be one kernel
    trusted_kernels: int = 0
    inefficient: list[tuple[list[Op], float]] = field(default_factory=list)  # ops, us
    cost_sensitive: set[Group] = field(default_factory=set)  # every later merge is evaluated
    unevaluated: list[Op] = field(default_factory=list)  # ops that extended a kernel
    suspects: set[Op] = field(default_factory=set)  # every merge of them is evaluated
    # the ops of a kernel when it was last evaluated, and those of two kernels that were rejected
    accepted: dict[Group, list[Op]] = field(default_factory=dict)
    rejected: dict[tuple[Group, Group], tuple[int, Reason]] = field(default_factory=dict)

    def grow_optimistically(self) -> bool:
        """Make all legal merges, then evaluate each resulting kernel once.

        Return whether all kernels are accepted. The ops of an accepted kernel, and the cores of
        rejected ones, are trusted to fit together when the others are grown step by step.
        """
        self.check = Check.LEGALITY
        self._grow()
        self.check = Check.KERNEL
        kernels = [g for g in self.groups.topological_order() if not g.library]
        accepted = [g for g in kernels if len(g.ops) == 1 or self._is_accepted(g)]
        taken = set(accepted)
        rejected = [g for g in kernels if g not in taken]
        cores = [core for g in rejected for core in self._cores(g)]
        for ops in (*(g.ops for g in accepted), *cores):
            self._trust(ops)
        return len(accepted) == len(kernels)

    def grow_checked(self) -> None:
        """Grow again, with a check of each merge.

        Kernels that grew without an evaluation are evaluated at the end. If some are rejected, or
        compute values twice at a loss, grow again and evaluate every merge of their ops, but those
        that an accepted kernel had.
        """
        self._grow()
        while rejected := self._rejected_kernels():
            for g in rejected:
                self.suspects.update(g.ops)
                self._trust(self.accepted.get(g, ()))
            self._grow()

    def _trust(self, ops: Iterable[Op]) -> None:
        """Merge these ops without a check."""
        self.trusted_kernels += 1
        self.trusted |= dict.fromkeys(ops, self.trusted_kernels)

    def _rejected_kernels(self) -> list[Group]:
        """Return the groups that grew without an evaluation to kernels that are rejected."""
        group_of = self.groups.group_of
        grown = dict.fromkeys(group_of[op] for op in self.unevaluated)
        return [g for g in grown if recomputes_too_much(self._evaluate(g.ops))]

    def trust_inefficient(self) -> bool:
        """Trust inefficient kernels whose separate parts are not predicted to be faster.

        Return whether there are any.
        """
        trusted_before = self.trusted_kernels
        for ops, us in self.inefficient:
            parts = dict.fromkeys(self.groups.group_of[op] for op in ops)
            costs = [self._evaluate(g.ops).cost for g in parts]
            separate_us = sum(math.inf if c is None else c.us for c in costs)
            if len(costs) > 1 and separate_us >= SEPARATE_KERNELS_TIME_SHARE * us:
                self._trust(ops)
        return self.trusted_kernels > trusted_before

    def try_merge(self, producer: Op, consumer: Op) -> None:
        """Merge the groups of two ops, or note why not."""
        a, b = self.groups.group_of[producer], self.groups.group_of[consumer]
        rejection = None if a is b else self._rejection(producer, consumer)
        if rejection is not None:
            self.rejections[producer, consumer] = rejection
            return
        if self.check is not Check.LEGALITY:
            self.elementwise.record_merge(producer, consumer)
        if a is not b:
            self.groups.merge(a, b)
            self.merges.append((producer, consumer))

    def undo_merges(self, fuel: int) -> None:
        """Undo all merges but the first `fuel` ones."""
        if fuel >= len(self.merges):
            return
        merged_group_of, self.merges = self.groups.group_of, self.merges[:fuel]
        self.groups = Groups(self.index, self.sides)
        for op in self.index.computing_ops_in_order():
            self.groups.add(op)
        group_of = self.groups.group_of
        for producer, consumer in self.merges:
            self.groups.merge(group_of[producer], group_of[consumer])
        for producer, consumer in self.index.edges():
            if merged_group_of[producer] is merged_group_of[consumer]:
                self.rejections[producer, consumer] = Rule.NO_FUEL()

    def _grow(self) -> None:
        self.groups = Groups(self.index, self.sides)
        self.elementwise = ElementwiseIndex(self.index)
        self.rejections, self.merges = {}, []
        self.cost_sensitive, self.unevaluated = set(), []
        self.accepted, self.rejected = {}, {}
        for op in self.index.computing_ops_in_order():
            self._place(op)
        for op in self.index.graph.ops:
            if is_concat_or_pad(op) or op.kind == "contract":
                self._retry_with_readers(op)

    def _place(self, op: Op) -> None:
        """Merge an op into the groups of its producers, those that save the most first."""
        producers = self.index.predecessors[op]
        self.groups.add(op)
        if op.kind == "opaque":
            rule = library_call_rule(op)
            self.rejections.update({(p, op): rule for p in producers})
            return
        gains = {p: (fusion_requested(p, op), size_hint(p.result.type.nbytes)) for p in producers}
        for p in sorted(producers, key=gains.__getitem__, reverse=True):
            self.try_merge(p, op)

    def _retry_with_readers(self, op: Op) -> None:
        """Merge an op with its readers if they are one kernel by now.

        Its result then needs no memory. It needed memory when its first reader alone was placed.
        So a kernel may compute parts of a concat or of a matrix product that it would not store.
        """
        readers = self.index.readers[op.result]
        if len(readers) > 1 and len({self.groups.group_of[u] for u in readers}) == 1:
            self.try_merge(op, readers[0])

    def _evaluate(self, ops: Sequence[Op]) -> Evaluation:
        return self.legality.evaluator.evaluate(ops, self.index, self.rounded)

    def _is_accepted(self, group: Group) -> bool:
        if group.elementwise and self.elementwise.is_trivial_kernel(set(group.ops)):
            return True
        rejection, cost = self._evaluate(group.ops)
        if is_inefficient(cost):
            self.inefficient.append((group.ops, cost.us))
            return False
        return rejection is None

    def _cores(self, group: Group) -> list[list[Op]]:
        """Return the cores of a group: its products with the ops that they need to be one kernel.

        One kernel may have a whole core although no kernel may have some part of it, or only a
        slow one, such as one that stores a decoded weight. The core of a group is all of its
        products, if it has several, the ops between them, and ops that feed these. If no kernel
        may have that, each product has a core with what decodes its larger operand, if
        that kernel is efficient or faster than decoding first.
        """
        products = [op for op in group.ops if op.kind == "contract"]
        if len(products) > 1:
            between = self._between(products, group)
            for core in (self._with_feeding(between, group, FEEDING), between):
                if self._is_fast([op for op in group.ops if op in core]):
                    return [[op for op in group.ops if op in core]]
        cores = []
        for product in products:
            weight = max(product.inputs, key=lambda v: size_hint(v.type.numel))
            decoded = self._with_feeding({product}, group, DECODING, weight)
            ops = [op for op in group.ops if op in decoded]
            if len(ops) > 1 and (self._is_fast(ops) or self._beats_decoding(product, ops)):
                cores.append(ops)
        return cores

    def _beats_decoding(self, product: Op, ops: Sequence[Op]) -> bool:
        """Whether a product with what decodes its operand is no slower than the two in turn."""
        rejection, together = self._evaluate(ops)
        if rejection is not None or together is None:
            return False
        parts = [op for op in ops if op is not product], [product]
        decoding, multiplying = (self._evaluate(part).cost for part in parts)
        costs = self.legality.evaluator.costs_of(product.result.type.device)
        return merge_too_costly(together, (decoding, multiplying), costs) is None

    def _is_fast(self, ops: Sequence[Op]) -> bool:
        """Whether ops may be one kernel, and an efficient one."""
        rejection, cost = self._evaluate(ops)
        return rejection is None and cost is not None and not is_inefficient(cost)

    def _between(self, products: Sequence[Op], group: Group) -> set[Op]:
        """Return the products of a group, and the ops from one to another."""
        inside = set(group.ops)

        def readers(op: Op) -> list[Op]:
            return [r for v in op.results for r in self.index.readers[v] if r in inside]

        def producers(op: Op) -> list[Op]:
            return [p for p in self.index.predecessors[op] if p in inside]

        return reachable(products, readers).keys() & reachable(products, producers).keys()

    def _with_feeding(
        self, core: Set[Op], group: Group, patterns: Set[Pattern], only: Value | None = None
    ) -> set[Op]:
        """Return the core and the ops of the group that feed it: no other op of it reads them.

        Of the operands of the core, `only` this one may be fed.
        """
        fed, inside = set(core), set(group.ops)
        for op in reversed(group.ops):
            readers = [r for v in op.results for r in self.index.readers[v] if r in inside]
            if OPS[op.kind].pattern not in patterns or not readers or not fed.issuperset(readers):
                continue
            if only is None or core.isdisjoint(readers) or only in op.results:
                fed.add(op)
        return fed

    def _rejection(self, producer: Op, consumer: Op) -> Reason | None:
        """Return why the groups of two ops are not merged; None if they are."""
        rejection = self.legality.rejection(self.groups, producer, consumer)
        if rejection is not None or self.check is Check.LEGALITY:
            return rejection
        a, b = self.groups.group_of[producer], self.groups.group_of[consumer]
        shared = {producer.result, *producer.inputs} & set(consumer.inputs)
        both_elementwise = bool(shared) and a.elementwise and b.elementwise
        if both_elementwise and self.elementwise.is_trivial_kernel({*a.ops, *b.ops}):
            return None
        kernels = {self.trusted.get(op) for op in (*a.ops, *b.ops)}
        if len(kernels) == 1 and None not in kernels:
            return None
        is_suspect = not self.suspects.isdisjoint((producer, consumer)) or _runs_in_steps(a, b)
        if not is_suspect and (self._extends_kernel(consumer, a, b) or self._extends_large(a, b)):
            self.unevaluated.append(consumer)
            return None
        ops = self.groups.merged_ops(a, b)
        known, reason = self.rejected.get((a, b), (0, None))
        if reason is not None and _grows_little(known, len(ops)):
            return reason
        rejection, together = self._evaluate(ops)
        if rejection is None:
            self.accepted[max(a, b, key=lambda g: len(g.ops))] = ops
        else:
            self.rejected[a, b] = len(ops), rejection
        if not is_inefficient(together) or fusion_requested(producer, consumer):
            return rejection
        siblings = not shared.intersection(producer.results)
        costs = self.legality.evaluator.costs_of(consumer.result.type.device)
        loops_differ = siblings or loop_structure_changes(a.ops, b.ops)
        if costs.merges_equal_loops and not loops_differ and not together.recomputed_adds:
            return rejection
        self.cost_sensitive |= {a, b}
        cost_a, cost_b = (self._evaluate(g.ops).cost for g in (a, b))
        return merge_too_costly(together, (cost_a, cost_b), costs)

    def _extends_large(self, a: Group, b: Group) -> bool:
        """Whether a large kernel has few ops more, with a merge, than the last evaluated one."""
        known = max(len(self.accepted.get(g, ())) for g in (a, b))
        return _grows_little(known, len(a.ops) + len(b.ops))

    def _extends_kernel(self, consumer: Op, a: Group, b: Group) -> bool:
        """Whether group `b` is one op that adds no loops to kernel `a`: no evaluation is needed."""
        if a in self.cost_sensitive or b.ops != [consumer]:
            return False
        computing_ops, group_of = self.index.computing_ops, self.groups.group_of
        read = [v for v in consumer.inputs if v in computing_ops]
        read_from_a = [v for v in read if group_of[computing_ops[v]] is a]
        first_reads = [v for v in read_from_a if self.elementwise.slice_reader(v) is None]
        if any(loop_structure_changes((computing_ops[v],), (consumer,)) for v in first_reads):
            return False
        return self.elementwise.extends_kernel(consumer, read_from_a)


def _runs_in_steps(*groups: Group) -> bool:
    """Whether a group has loops that carry values: other ops beside them may make that illegal."""
    return any(OPS[op.kind].pattern in STEPWISE for g in groups for op in g.ops)


def _grows_little(known: int, ops: int) -> bool:
    """Whether a kernel has few ops more than the `known` ones when it was last evaluated.

    Kernels are not evaluated again until they have grown, if they are large: the evaluations of a
    growing kernel then take time in proportion to its final size.
    """
    return known >= MIN_OPS_OF_LARGE_KERNEL and ops < MIN_GROWTH_OF_LARGE_KERNEL * known
