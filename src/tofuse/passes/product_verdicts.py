"""Say in verdicts why a matrix product is a library call, and what a kernel would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tofuse.graph_partition import Partition
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Verdict
from tofuse.ir.rules import Reason, Rule
from tofuse.passes.contract_products import is_contractible

GENERAL_RULES = (Rule.LIBRARY_CALL, Rule.LIBRARY_EPILOGUE)


def weight_of(product: Op) -> Value:
    """Return the right factor of a product."""
    *_, weight = product.argument_tensors or ()
    return weight


def explain_products(part: Partition, reasons: Mapping[Value, Reason]) -> Partition:
    """Return the partition with the reason of each product in the verdicts of its edges.

    `reasons` has them by the weights of the products.
    """
    products = {
        op.result.name: reasons[weight_of(op)]
        for op in part.graph.ops
        if op.kind == "opaque" and is_contractible(op) and weight_of(op) in reasons
    }
    if not products:
        return part

    def explained(v: Verdict) -> Verdict:
        reason = products.get(v.producer) or products.get(v.consumer)
        is_general = v.reason.rule in GENERAL_RULES
        return replace(v, reason=reason) if is_general and reason is not None else v

    return replace(part, verdicts=tuple(map(explained, part.verdicts)))
