"""Writes in place whose functional variant has other strides than the tensor they write."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tofuse.capture.fx.aliases import METADATA_WRITERS, storage_id
from tofuse.capture.fx.node_tensors import example_tensor, target_name
from tofuse.capture.fx.sizes import size_hint
from tofuse.ir.dims import contiguous_strides
from tofuse.torch_internals.dispatch import DisableAutocast
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.operators import OpOverloadPacket
from tofuse.torch_internals.symbolic_shapes import tracing_operators


def preserve_strides(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace `x.op_(...)` by `x.copy_(x.clone().op(...))`, if `x.op(...)` has other strides.

    AOTAutograd uses the result of `x.op(...)` as the new `x`. The result of `masked_fill` is always
    contiguous. If `x` is not, later values would get other strides than in eager. The clone lets
    autograd save the old `x`, which `copy_` overwrites.
    """
    for node in gm.graph.nodes:
        functional = _functional_variant(node)
        written = node.args[0] if functional is not None and node.args else None
        tensor = example_tensor(written)
        if functional is None or tensor is None or _is_row_major(tensor):
            continue
        result = _example_result(functional, node, tensor)
        if result is None or not _is_restrided(result, tensor):
            continue
        with gm.graph.inserting_before(node):
            old = gm.graph.call_method("clone", node.args[:1])
            if target_name(node.target) in RANDOM_WRITES:
                old = gm.graph.call_method("detach", (old,))
            arguments = (old, *node.args[1:])
            if node.op == "call_method":
                functional, arguments = functional_write, (str(node.target), *arguments)
            value = gm.graph.call_function(functional, arguments, node.kwargs)
            value.meta = {**node.meta, "example_value": result}
            gm.graph.call_method("copy_", (written, value)).meta = dict(node.meta)
        node.replace_all_uses_with(written)  # what it returns, too
        gm.graph.erase_node(node)
        gm.recompile()
    return gm, ()


def call_preserving_strides(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Call a function, as `preserve_strides` would replace the call.

    Functional variants that are no methods of tensors, such as `aten.copy`, have no derivatives.
    """
    name = target_name(function)
    functional = None if name in METADATA_WRITERS else _method_variant(name)
    if functional is not None and not isinstance(functional, OpOverloadPacket):
        x, *rest = args
        if isinstance(x, torch.Tensor) and x.layout is torch.strided and not _is_row_major(x):
            old = x.detach() if name in RANDOM_WRITES else x
            return x.copy_(functional_write(name, old.clone(), *rest, **kwargs))
    return function(*args, **kwargs)


def _functional_variant(node: Node) -> Callable[..., object] | None:
    """Return the function that computes what a call writes into its first argument, if any."""
    if node.op == "call_function":
        return INPLACE_OPERATORS.get(node.target)
    return _method_variant(str(node.target)) if node.op == "call_method" else None


def _method_variant(name: str) -> Callable[..., object] | None:
    """Return what computes the value that a method of this name writes; `map_` has none."""
    if not name.endswith("_") or name.startswith("_"):
        return None
    variant = getattr(torch.Tensor, name[:-1], None) or getattr(torch.ops.aten, name[:-1], None)
    return variant if callable(variant) else None


def functional_write(name: str, x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """Return what `x.<name>(...)` writes in place, in the precision of that call.

    Autocast has other rules for a function than for the call in place, which it leaves alone.
    """
    variant = _method_variant(name)
    assert variant is not None
    with DisableAutocast():
        result = variant(x, *args, **kwargs)
    assert isinstance(result, torch.Tensor)
    return result


def _example_result(
    function: Callable[..., object], node: Node, tensor: FakeTensor
) -> torch.Tensor | None:
    """Return the example result of another function with a node's arguments; None if it fails."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("example_value"))
    try:
        with tracing_operators(tensor.fake_mode), DisableAutocast():
            result = function(*args, **kwargs)
    except (RuntimeError, TypeError):
        return None
    return result if isinstance(result, torch.Tensor) else None


def _is_restrided(result: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether a result of the same shape, with memory of its own, has other strides.

    The variant of `transpose_` returns a view.
    """
    if result.dim() != tensor.dim() or storage_id(result) == storage_id(tensor):
        return False
    (shape, strides), (tensor_shape, tensor_strides) = _layout(result), _layout(tensor)
    return shape == tensor_shape and strides != tensor_strides


def _is_row_major(tensor: torch.Tensor) -> bool:
    shape, strides = _layout(tensor)
    return strides == contiguous_strides(shape)


def _layout(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and strides at the first call. Comparing symbolic ones adds guards."""
    return tuple(map(size_hint, tensor.shape)), tuple(map(size_hint, tensor.stride()))


# What these write does not depend on the old value. Their functional variants have no derivatives.
_RANDOM = "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_"
RANDOM_WRITES = frozenset(_RANDOM.split())

INPLACE_OPERATORS: dict[object, Callable[..., object]] = {
    getattr(operator, f"i{name.rstrip('_')}"): getattr(operator, name)
    for name in ["add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and_", "or_", "xor"]
}
