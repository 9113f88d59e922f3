"""Rules for constant indices that repeat each element: 0, 0, 1, 1, ...

`interpolate(mode="nearest")` by whole factors is captured as an index of computed positions. Such
an index is a broadcast, and its gradient is a sum.
"""

from __future__ import annotations

import itertools
from typing import Union

import torch
from torch.fx import Node

from tofuse.capture.fx.aliases import is_impure
from tofuse.capture.lower.builder import Unsupported
from tofuse.capture.lower.call import AtenCall, LoweringRule
from tofuse.capture.lower.rules.view_ops import index, require_static
from tofuse.cost.thresholds import MAX_CONSTANT_INDEX_ELEMENTS, MAX_CONSTANT_INDEX_OPS
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value
from tofuse.torch_internals.fake_tensors import unset_fake_temporarily
from tofuse.torch_internals.operators import OpOverload

ConstantValue = Union[torch.Tensor, int, float, bool, None]  # noqa: UP007


def repeating_index(call: AtenCall) -> Value:
    """`x[:, :, i, j]` with such indices i and j."""
    try:
        factors = _repeat_factors(call)
    except Unsupported:
        return index(call, bounded=False)
    x, build = call.tensor("self"), call.build
    unsqueezed = build.reshape(x, _split_repeated_dims(x.shape, dict.fromkeys(factors, 1)))
    expanded = build.expand(unsqueezed, _split_repeated_dims(x.shape, factors))
    return build.reshape(expanded, call.out.shape)


def repeating_index_put(call: AtenCall) -> Value:
    """Add to each element the sum of the values at its repetitions."""
    if not call.arguments.get("accumulate"):
        raise Unsupported("repeated indices without accumulation")
    factors, build, out = _repeat_factors(call), call.build, call.out
    values = build.reshape(call.tensor("values"), _split_repeated_dims(out.shape, factors))
    dims = tuple(k + n for n, k in enumerate(factors, 1))  # where the shape has factors
    total = build.reduce("sum", values, dims, out.dtype)
    return build.emit("add", (call.tensor("self"), total), {})


def _repeat_factors(call: AtenCall) -> dict[int, int]:
    """Return how often each indexed dimension repeats its elements."""
    indices, shape = call.fx_arguments["indices"], call.tensor("self").shape
    if not isinstance(indices, (list, tuple)):
        raise Unsupported("no list of indices")
    dims = [k for k, i in enumerate(indices) if i is not None]
    if not dims or dims[-1] - dims[0] != len(dims) - 1:
        raise Unsupported("indices that are not adjacent")
    factors: dict[int, int] = {}
    for k in dims:
        node, extent = indices[k], require_static(shape[k])
        numbers = _constant_index(node, dims[-1] - k) if isinstance(node, Node) else None
        if not numbers or extent == 0:
            raise Unsupported("indices that depend on inputs")
        factor = max(1, len(numbers) // extent)
        if numbers != [n // factor for n in range(factor * extent)]:
            raise Unsupported("indices that do not repeat each element")
        factors[k] = factor
    return factors


def _split_repeated_dims(shape: tuple[Dim, ...], factors: dict[int, int]) -> tuple[Dim, ...]:
    """Return the shape with each repeated dimension split into (extent, factor)."""
    pairs = ((d, factors[k]) if k in factors else (d,) for k, d in enumerate(shape))
    return tuple(itertools.chain.from_iterable(pairs))


def _constant_index(node: Node, trailing_dims: int) -> list[int] | None:
    """Return the numbers of a small integer tensor that depends on no input; None for others.

    All of them must be along the dimension that has `trailing_dims` dimensions after it.
    """
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or fake.dtype is not torch.int64:
        return None
    if (
        not all(isinstance(d, int) for d in fake.shape)
        or fake.numel() > MAX_CONSTANT_INDEX_ELEMENTS
    ):
        return None
    if fake.dim() <= trailing_dims or fake.shape[-1 - trailing_dims] != fake.numel():
        return None
    values: dict[Node, ConstantValue] = {}
    with unset_fake_temporarily(), torch.no_grad():
        value = _evaluate(node, values)
        return value.flatten().tolist() if isinstance(value, torch.Tensor) else None


def _evaluate(node: Node, values: dict[Node, ConstantValue]) -> ConstantValue:
    """Return a node's value; None if it depends on inputs or random numbers."""
    if node not in values:
        values[node] = None
        target = node.target
        if not isinstance(target, OpOverload) or is_impure(node):
            return None
        if len(values) < MAX_CONSTANT_INDEX_OPS:
            operands = {n: _evaluate(n, values) for n in node.all_input_nodes}
            if all(v is not None for v in operands.values()):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), operands.__getitem__)
                values[node] = target(*args, **kwargs)
    return values[node]


CONSTANT_INDEX_RULES: dict[str, LoweringRule] = {
    "aten._unsafe_index": repeating_index,
    "aten._unsafe_index_put": repeating_index_put,
}
