"""Partition -> Graph: fold an addition that is fused with nothing into the product before it."""

from __future__ import annotations

from dataclasses import replace

from tofuse.analysis.alias import is_view
from tofuse.graph_partition import Partition
from tofuse.ir.call_arguments import OperandRef
from tofuse.ir.fusion_hints import fusion_forbidden
from tofuse.ir.graph import Attr, Graph, Op, Value
from tofuse.ir.types import DType
from tofuse.ops.result_types import make_op

FUSED_TARGETS = {
    "aten.mm.default": "aten.addmm.default",
    "aten.bmm.default": "aten.baddbmm.default",
}
EXACT_DTYPES = (DType.F32, DType.F64)  # half precision would be rounded once, in eager twice


def fold_epilogues(part: Partition) -> Graph:
    """Let the library's operator add a bias or residual that would be a kernel of its own.

    In a kernel with other ops the addition costs nothing, while the library first copies the
    summand into the result.
    """
    graph = part.graph
    producers, users = graph.producers(), graph.users()
    folded: dict[Op, Op] = {}
    removed: set[Op] = set()
    for region in part.regions:
        computing = [op for op in region.ops if not is_view(op)]
        if region.library or len(computing) != 1 or computing[0].kind != "add":
            continue
        (add,) = computing
        if add.result in part.aliases.slices:
            continue  # the library would not write into the concat
        for k, v in enumerate(add.inputs if len(add.inputs) == 2 else ()):
            product = producers.get(v)
            if product is None or product in removed or v in graph.outputs or len(users[v]) > 1:
                continue
            fused = _fused_call(product, add, add.inputs[1 - k])
            if fused is not None:
                folded[add] = fused
                removed.add(product)
                break
    if not folded:
        return graph
    ops = tuple(folded.get(op, op) for op in graph.ops if op not in removed)
    return replace(graph, ops=ops)


def _fused_call(product: Op, add: Op, summand: Value) -> Op | None:
    """Return the library's operator for product and addition; None if it has none."""
    if product.kind != "opaque" or summand is product.results[0] or fusion_forbidden(product, add):
        return None
    target = FUSED_TARGETS.get(str(product.attr("target")))
    if target is None or add.result.dtype not in EXACT_DTYPES:
        return None
    shifted = product.arguments.map_operands(lambda k: OperandRef(k + 1))
    attrs: dict[str, Attr] = {
        "target": target,
        "args": replace(shifted, positional=(OperandRef(0), *shifted.positional)),
        "shape": add.result.shape,
        "dtype": add.result.dtype,
        "epilogue": "add",
    }
    call = make_op("opaque", (summand, *product.operands), attrs, name=add.result.name, like=add)
    return replace(call, results=add.results)
