"""Graph -> Graph: an addition that nothing is fused with goes into the matrix product before it."""

from __future__ import annotations

import re
from dataclasses import replace

from tofuse.analysis.alias import is_view
from tofuse.ir.fusion_hints import kept_apart
from tofuse.ir.graph import Attr, Graph, Op, Value
from tofuse.ir.region import Partition
from tofuse.ir.types import DType
from tofuse.ops.result_types import make_op

FUSED = {"aten.mm.default": "aten.addmm.default", "aten.bmm.default": "aten.baddbmm.default"}
EXACT = (DType.F32, DType.F64)  # halves would be rounded once where eager rounds twice


def fold_epilogues(part: Partition) -> Graph:
    """The graph with bias or residual added by the library's own operator.

    Only where the addition would be a kernel alone: with others it costs nothing there, and the
    library would write what it adds to before it begins.
    """
    graph = part.graph
    makers, users = graph.producers(), graph.users()
    folded: dict[Op, Op] = {}
    gone: set[Op] = set()
    for region in part.regions:
        computing = [op for op in region.ops if not is_view(op)]
        if region.library or len(computing) != 1 or computing[0].kind != "add":
            continue
        (add,) = computing
        if add.result in part.parts:
            continue  # the library would write it elsewhere
        for k, v in enumerate(add.inputs if len(add.inputs) == 2 else ()):
            product = makers.get(v)
            if product is None or product in gone or v in graph.outputs or len(users[v]) > 1:
                continue
            fused = _fused(product, add, add.inputs[1 - k])
            if fused is not None:
                folded[add] = fused
                gone.add(product)
                break
    if not folded:
        return graph
    ops = tuple(folded.get(op, op) for op in graph.ops if op not in gone)
    return replace(graph, ops=ops)


def _fused(product: Op, add: Op, other: Value) -> Op | None:
    """The library's product and addition in one; None where it has none."""
    if product.kind != "opaque" or other is product.results[0] or kept_apart(product, add):
        return None
    target = FUSED.get(str(product.attr("target")))
    if target is None or add.result.dtype not in EXACT:
        return None
    shifted = re.sub(r"\$(\d+)", lambda m: f"${int(m[1]) + 1}", str(product.attr("args")))
    attrs: dict[str, Attr] = {
        "target": target,
        "args": f"$0, {shifted}",
        "shape": add.result.shape,
        "dtype": add.result.dtype,
        "epilogue": "add",
    }
    made = make_op("opaque", (other, *product.operands), attrs, name=add.result.name, like=add)
    return replace(made, results=add.results)
