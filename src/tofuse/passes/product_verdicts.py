"""Say in verdicts why what computes a factor of a product is not in the product's kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tofuse.analysis.alias import view_chain
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Value
from tofuse.ir.region import Verdict
from tofuse.ir.rules import Reason, Rule
from tofuse.passes.contract_products import is_contractible
from tofuse.passes.product_ops import factors_of, weight_of


def explain_products(part: Partition, reasons: Mapping[tuple[Value, Value], Reason]) -> Partition:
    """Return the partition with the reasons in the verdicts of the edges into second factors.

    `reasons` says why products are library calls, by both factors.
    """
    if not reasons:
        return part
    producers = part.graph.producers()
    known: dict[tuple[str, str], Reason] = {}
    for op in part.graph.ops:
        if op.kind == "opaque" and is_contractible(op) and factors_of(op) in reasons:
            weight = view_chain(weight_of(op), producers)[-1]
            known[weight.name, op.result.name] = reasons[factors_of(op)]

    def explained(v: Verdict) -> Verdict:
        reason = known.get((v.producer, v.consumer))
        is_general = v.reason.rule is Rule.LIBRARY_CALL
        return replace(v, reason=reason) if is_general and reason is not None else v

    return replace(part, verdicts=tuple(map(explained, part.verdicts)))
