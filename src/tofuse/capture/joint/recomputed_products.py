"""The products that a backward computes again, with the reductions of their rows.

The scores of attention are such products: their number grows with the square of the length. The
gradients need only queries and keys, from which kernels compute the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import viewed_node
from tofuse.capture.fx.phases import backward_nodes
from tofuse.capture.lower.convert import convert
from tofuse.capture.lower.lowering_rules import lowering_rule
from tofuse.capture.lower.rules.reductions import REDUCTION_RULES
from tofuse.errors import CaptureError
from tofuse.ir.graph import Graph
from tofuse.ir.recomputable import RecomputableProducts
from tofuse.torch_internals.operators import OpOverload

aten = torch.ops.aten
PRODUCTS = frozenset((aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default))


FindRecomputable = Callable[[Graph], RecomputableProducts]


@dataclass(frozen=True, eq=False)
class RecomputedProducts:
    """The products and reductions of a forward that its backward computes again: `nodes`.

    `in_kernels` are the products of forward and backward that kernels compute. Their factors need
    no memory, as factors of library calls do.
    """

    nodes: frozenset[Node] = frozenset()
    in_kernels: frozenset[Node] = frozenset()


def recomputed_products(
    joint: GraphModule, find_recomputable: FindRecomputable | None
) -> RecomputedProducts:
    """Return the products that the backward of a joint graph computes again.

    There are none if no product is larger than its factors together, or if `find_recomputable` is
    None: no kernel computes products.
    """
    order = list(joint.graph.nodes)
    larger = [n for n in order if n.target in PRODUCTS and _is_larger(n)]
    if find_recomputable is None or not larger:
        return RecomputedProducts()
    try:
        found = find_recomputable(convert(joint, "joint").graph)
    except CaptureError:
        return RecomputedProducts()
    backward = backward_nodes(order)
    products = {n for n in larger if n.name in found.products and n not in backward}
    if not products:
        return RecomputedProducts()
    values: set[Node] = set()
    for n in order:
        if n.name in found.values or viewed_node(n) in values:
            values.add(n)
    reductions = {n for n in order if _is_reduction(n) and values.intersection(n.all_input_nodes)}
    known = {*found.products, *found.readers}
    in_kernels = {n for n in order if n.target in PRODUCTS and n.name in known}
    nodes = products | (reductions - backward)
    return RecomputedProducts(frozenset(nodes), frozenset(in_kernels))


def _is_larger(product: Node) -> bool:
    """Whether a product has more elements than its factors, which are all tensors."""
    operands = [n.meta["val"] for n in product.args[-2:] if isinstance(n, Node)]
    sizes = [x.numel() for x in (product.meta["val"], *operands)]
    return all(type(n) is int for n in sizes) and sizes[0] > sum(sizes[1:])


def _is_reduction(n: Node) -> bool:
    return isinstance(n.target, OpOverload) and lowering_rule(n.target) in REDUCTION_RULES.values()
