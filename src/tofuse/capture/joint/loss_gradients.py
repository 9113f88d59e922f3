"""The pass that computes the gradients of a large product in the forward, for a tangent of one.

A loss over a large vocabulary keeps its logits for the backward. All gradients are linear in the
tangent of the loss, which is a scalar. So the forward computes the gradients of the product's
factors for a tangent of one, and the backward multiplies them by the tangent: then logits are read
in the forward only, and can be computed in chunks of rows (`passes/chunk`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import has_side_effect
from tofuse.capture.fx.eager_memory import backward_nodes
from tofuse.capture.lower.lowerable import is_lowerable
from tofuse.cost.thresholds import CHUNKED_BYTES, MIN_CHUNK_ROWS, MIN_CHUNKS, WIDE_SHARE
from tofuse.torch_internals.operators import OpOverload

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default)
# in float16, gradients for a tangent of one may vanish: that is why losses are scaled
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def loss_gradients(
    joint: GraphModule,
    product_bytes: int = CHUNKED_BYTES,
    product_rows: int = MIN_CHUNKS * MIN_CHUNK_ROWS,
) -> GraphModule:
    """Move gradients of products of at least so many bytes and rows into the forward, in place."""
    order = list(joint.graph.nodes)
    dependent = backward_nodes(order)
    tangents = [n for n in order if n.op == "placeholder" and n in dependent and n.users]
    if len(tangents) != 1 or not _is_scalar(tangents[0]):
        return joint
    for product in (n for n in order if n.target in PRODUCTS and n not in dependent):
        if _nbytes(product) >= product_bytes and product.meta["val"].shape[0] >= product_rows:
            head = _find_head(order, dependent, product)
            if head is not None:
                _compute_in_forward(joint, head, tangents[0])
    return joint


@dataclass(frozen=True, eq=False)
class _Head:
    """The gradients of a product's factors, and the nodes that they need of the backward."""

    gradients: list[Node]
    needed: list[Node]  # in program order, with the gradients


def _find_head(order: list[Node], dependent: set[Node], product: Node) -> _Head | None:
    """Return the head whose logits are `product`; None if wide tensors are used elsewhere."""
    from_product = _with_rows(order, product)
    numel = math.prod(product.meta["val"].shape) // WIDE_SHARE

    def is_wide(n: Node) -> bool:
        value = n.meta.get("val")
        return isinstance(value, torch.Tensor) and _numel(value) >= numel

    wide = {n for n in from_product & dependent if is_wide(n)}
    gradients = [
        n
        for n in order
        if n in dependent and _ends_rows(n) and not wide.isdisjoint(n.all_input_nodes)
    ]
    needed = _ancestors(order, set(gradients)) & dependent
    inner = needed - set(gradients)
    forward = {n for n in from_product - dependent if is_wide(n)}
    if not any(n.target in PRODUCTS for n in gradients):
        return None
    if any(isinstance(n.target, OpOverload) and not is_lowerable(n) for n in inner):
        return None  # a product or another library call between the loss and these gradients
    if any(n.op == "output" for v in (*forward, *wide) for n in v.users):
        return None
    if any(n not in needed for v in inner & wide for n in v.users):
        return None
    values = [v for n in needed if isinstance(v := n.meta.get("val"), torch.Tensor)]
    if any(v.is_floating_point() and v.dtype not in DTYPES for v in values):
        return None
    if any(n.op == "call_function" and has_side_effect(n) for n in needed):
        return None
    return _Head(gradients, [n for n in order if n in needed])


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


def _nbytes(n: Node) -> int:
    value = n.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES:
        return 0
    return _numel(value) * value.dtype.itemsize


def _numel(value: torch.Tensor) -> int:
    """Return the elements of a tensor; 0 if its size is symbolic."""
    sizes = [n for n in value.shape if isinstance(n, int)]
    return math.prod(sizes) if len(sizes) == value.dim() else 0


def _with_rows(order: Iterable[Node], product: Node) -> set[Node]:
    """Return a product and the nodes that depend on it, but none after a sum over its rows."""
    found = {product}
    for n in order:
        if not _ends_rows(n) and not found.isdisjoint(n.all_input_nodes):
            found.add(n)
    return found


def _ancestors(order: list[Node], goals: set[Node]) -> set[Node]:
    """Return the nodes that the goals depend on, and the goals."""
    found = set(goals)
    for n in reversed(order):
        if n in found:
            found.update(n.all_input_nodes)
    return found
