"""The pass that computes the gradients of a large product in the forward, for a tangent of one.

A loss over a large vocabulary keeps its logits for the backward. Gradients are linear in the
tangent of the loss, which is a scalar, unless a hook or a custom function is not. So the forward
computes the gradients of the product's factors for a tangent of one, and the backward multiplies
them by the tangent: then logits are read in the forward only, and can be computed in chunks of
rows (`passes/chunk`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from tofuse.analysis.reachability import reachable
from tofuse.capture.fx.phases import (
    is_tangent,
    with_dependents,
    with_operands,
    written_in_backward,
)
from tofuse.capture.joint.head_ops import is_linear, keeps_rows
from tofuse.cost.chunks import DEFAULT_CHUNK_LIMITS, ChunkLimits, ProductShape
from tofuse.cost.thresholds import WIDE_SHARE

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default)
# in float16, gradients for a tangent of one may vanish: that is why losses are scaled
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def loss_gradients(joint: GraphModule, limits: ChunkLimits = DEFAULT_CHUNK_LIMITS) -> GraphModule:
    """Move the gradients of products that can be chunked into the forward, in place."""
    products = [n for n in joint.graph.nodes if n.target in PRODUCTS and _is_large(n, limits)]
    for product in products:
        order = list(joint.graph.nodes)
        placeholders = [n for n in order if n.op == "placeholder" and n.users]
        tangents = [n for n in placeholders if is_tangent(n)]
        dependent = with_dependents(tangents)
        if len(tangents) != 1 or not _is_scalar(tangents[0]) or written_in_backward(order):
            return joint
        head = None if product in dependent else _find_head(order, dependent, product)
        if head is not None:
            _compute_in_forward(joint, head, tangents[0])
    return joint


@dataclass(frozen=True, eq=False)
class _Head:
    """The gradients of a product's factors, and the nodes that they need of the backward."""

    gradients: list[Node]
    needed: list[Node]  # in program order, with the gradients


def _find_head(order: list[Node], dependent: set[Node], product: Node) -> _Head | None:
    """Return the head whose logits are `product`.

    None if its gradients are not linear in the tangent, if its rows are mixed, or if a wide tensor,
    which has half of the product's elements, is used elsewhere.
    """
    from_product = set(
        reachable([product], lambda n: [user for user in n.users if not _ends_rows(user)])
    )
    rows = int(product.meta["val"].shape[0])
    numel = math.prod(product.meta["val"].shape) // WIDE_SHARE
    wide = {n for n in from_product if n.op != "output" and _numel(n.meta["val"]) >= numel}
    gradients = {
        n
        for n in order
        if n in dependent and _ends_rows(n) and not wide.isdisjoint(n.all_input_nodes)
    }
    needed = with_operands(gradients) & dependent
    inner = needed - gradients
    read = {i for n in inner for i in n.all_input_nodes} & from_product - dependent
    users = {u for n in wide for u in n.users} - gradients
    if not any(n.target in PRODUCTS for n in gradients):
        return None
    if not all(is_linear(n, dependent) for n in needed if n.op == "call_function"):
        return None
    if any(n not in needed for v in inner & wide for n in v.users):
        return None
    if any(n.op == "output" or not keeps_rows(n) for n in users):
        return None
    if any(_numel(n.meta["val"]) % rows for n in read):
        return None  # it depends on all rows, as the loss does
    if any(n.meta["val"].dtype not in DTYPES for n in needed):
        return None
    return _Head([n for n in order if n in gradients], [n for n in order if n in needed])


def _compute_in_forward(joint: GraphModule, head: _Head, tangent: Node) -> None:
    """Replace the gradients by products of the tangent and their values for a tangent of one."""
    value = tangent.meta["val"]
    copies: dict[Node, Node] = {}
    for n in head.needed:
        with joint.graph.inserting_before(n):
            if n is tangent:
                continue
            if tangent in n.all_input_nodes and tangent not in copies:
                options = {"dtype": value.dtype, "device": value.device}
                one = joint.graph.call_function(aten.full.default, ([], 1.0), options)
                one.meta["val"] = value
                copies[tangent] = one
            copies[n] = joint.graph.node_copy(n, lambda x: copies.get(x, x))
            copies[n].meta.pop("partitioner_tag", None)
    for n in head.gradients:
        with joint.graph.inserting_after(n):
            scaled = joint.graph.call_function(aten.mul.Tensor, (copies[n], tangent))
        scaled.meta |= n.meta
        n.replace_all_uses_with(scaled)
    for n in reversed(head.needed):
        if n is not tangent and not n.users:
            joint.graph.erase_node(n)


def _ends_rows(n: Node) -> bool:
    """Whether a node is a product, or a sum over the rows of a matrix."""
    if n.target is aten.sum.dim_IntList:
        return list(n.args[1]) == [0]  # type: ignore[arg-type]  # its dimensions
    return n.target in PRODUCTS


def _is_scalar(tangent: Node) -> bool:
    value = tangent.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in DTYPES


def _is_large(product: Node, limits: ChunkLimits) -> bool:
    """Whether a product with its gradients would be chunked."""
    if product.kwargs:  # factors of addmm
        return False
    a, b = (n.meta["val"] for n in product.args[-2:] if isinstance(n, Node))
    value, sizes = product.meta["val"], (*a.shape, b.shape[-1])
    if value.dtype not in DTYPES or not all(isinstance(n, int) for n in sizes) or len(sizes) != 3:
        return False
    return limits.chunk_count(ProductShape(*sizes, value.dtype.itemsize), with_gradients=True) > 0


def _numel(value: object) -> int:
    """Return the elements of a tensor; 0 for other values, and if its size is symbolic."""
    if not isinstance(value, torch.Tensor):
        return 0
    sizes = [n for n in value.shape if isinstance(n, int)]
    return math.prod(sizes) if len(sizes) == value.dim() else 0
