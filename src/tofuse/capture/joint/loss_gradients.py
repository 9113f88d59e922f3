"""The pass that computes the gradients of a large product in the forward, for a tangent of one.

A loss over a large vocabulary keeps its logits for the backward. Gradients are linear in the
tangent of the loss, which is a scalar, unless a hook or a custom function is not. So the forward
computes the gradients of the product's factors for a tangent of one, and the backward multiplies
them by the tangent: then logits are read in the forward only, and can be computed in chunks of
rows (`passes/chunk`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

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
        tangents = [n for n in placeholders if "tangents" in str(n.target)]
        dependent = _dependents(order, tangents)
        if len(tangents) != 1 or not _is_scalar(tangents[0]):
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
    from_product = _with_rows(order, product)
    rows = int(product.meta["val"].shape[0])
    numel = math.prod(product.meta["val"].shape) // WIDE_SHARE

    def is_wide(n: Node) -> bool:
        value = n.meta.get("val")
        return isinstance(value, torch.Tensor) and _numel(value) >= numel

    wide = {n for n in from_product if is_wide(n)}
    gradients = {
        n
        for n in order
        if n in dependent and _ends_rows(n) and not wide.isdisjoint(n.all_input_nodes)
    }
    needed = _ancestors(order, gradients) & dependent
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
    if any(
        _numel(n.meta["val"]) % rows for n in read if isinstance(n.meta.get("val"), torch.Tensor)
    ):
        return None  # it depends on all rows, as the loss does
    values = [v for n in needed if isinstance(v := n.meta.get("val"), torch.Tensor)]
    if any(v.is_floating_point() and v.dtype not in DTYPES for v in values):
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
    a, b = (n.meta["val"] for n in product.args[-2:] if isinstance(n, Node))
    value, sizes = product.meta["val"], (*a.shape, b.shape[-1])
    if value.dtype not in DTYPES or not all(isinstance(n, int) for n in sizes) or len(sizes) != 3:
        return False
    return limits.chunk_count(ProductShape(*sizes, value.dtype.itemsize), with_gradients=True) > 0


def _numel(value: torch.Tensor) -> int:
    """Return the elements of a tensor; 0 if its size is symbolic."""
    sizes = [n for n in value.shape if isinstance(n, int)]
    return math.prod(sizes) if len(sizes) == value.dim() else 0


def _dependents(order: Iterable[Node], roots: Iterable[Node]) -> set[Node]:
    """Return the nodes that depend on the roots, and the roots."""
    found = set(roots)
    for n in order:
        if n.op != "output" and not found.isdisjoint(n.all_input_nodes):
            found.add(n)
    return found


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
