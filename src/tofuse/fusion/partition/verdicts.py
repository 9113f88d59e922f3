"""Verdicts on the edges of a partitioned graph: fused or not, by which rule, and what it saves."""

from __future__ import annotations

from tofuse.cost.bandwidth import traffic_us
from tofuse.fusion.partition.grow import Growth
from tofuse.ir.dims import size_hint
from tofuse.ir.fusion_hints import fusion_requested
from tofuse.ir.graph import Op
from tofuse.ir.region import Verdict
from tofuse.ir.rules import Rule
from tofuse.ops.table import OPS, Pattern

FUSED_RULES = {
    Pattern.ELEMENTWISE: Rule.ELEMENTWISE,
    Pattern.REDUCE: Rule.REDUCTION,
    Pattern.GATHER: Rule.GATHER,
    Pattern.CONCAT: Rule.CONCAT_OPERANDS,
}  # by the consumer; of others: SAME_LOOPS


def edge_verdicts(growth: Growth) -> dict[tuple[Op, Op], Verdict]:
    """Return a verdict for every edge of the graph."""
    return {edge: _edge_verdict(growth, *edge) for edge in growth.index.edges()}


def sibling_verdict(a: Op, b: Op) -> Verdict:
    """Return the verdict on two ops fused because they read the same tensor."""
    return Verdict(a.result.name, b.result.name, True, Rule.SIBLINGS(), loc=b.loc)


def rejected_hints(verdicts: dict[tuple[Op, Op], Verdict]) -> tuple[Verdict, ...]:
    """Return the verdicts on edges that the user asks to fuse but that are not fused.

    Edges left unfused for lack of fuel are not among them: the user set the limit.
    """
    return tuple(
        verdict
        for edge, verdict in verdicts.items()
        if fusion_requested(*edge) and not verdict.fused and verdict.reason.rule is not Rule.NO_FUEL
    )


def _edge_verdict(growth: Growth, producer: Op, consumer: Op) -> Verdict:
    index, group_of = growth.index, growth.groups.group_of
    consumer_name = consumer.results[0].name if consumer.results else consumer.kind
    names = producer.results[0].name, consumer_name
    requested = fusion_requested(producer, consumer)
    group = group_of[producer]
    if group is not group_of[consumer]:
        others_first = Rule.FUSED_WITH_OTHERS()
        reason = growth.rejections.get((producer, consumer), others_first)
        return Verdict(*names, False, reason, loc=consumer.loc, requested=requested)
    result = producer.result
    readers = index.readers[result]
    inside = [u for u in readers if group_of[u] is group]
    is_stored = result in index.returned or len(inside) < len(readers)
    # each reader saves a load, and the first one saves the store too
    accesses = 2 if consumer is inside[0] and not is_stored else 1
    nbytes = size_hint(result.type.nbytes) * accesses
    rule = FUSED_RULES.get(OPS[consumer.kind].pattern, Rule.SAME_LOOPS)
    machine = growth.legality.evaluator.costs_of(result.type.device).machine
    saved_us = traffic_us(machine, nbytes) + machine.launch_us
    return Verdict(*names, True, rule(), nbytes, 1, 0.0, saved_us, consumer.loc, requested)
