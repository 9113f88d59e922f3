"""Writes in place whose functional variant has other strides than the tensor they write."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tofuse.capture.fx.aliases import storage_id
from tofuse.capture.fx.node_tensors import example_tensor
from tofuse.capture.fx.sizes import size_hint
from tofuse.torch_internals.fake_tensors import FakeTensor


def preserve_strides(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace `x.op_(...)` by `x.copy_(x.clone().op(...))`, if `x.op(...)` has other strides.

    AOTAutograd takes the result of `x.op(...)` for the new `x`. That of `masked_fill`, say, is
    contiguous whatever `x` is; what is computed from it would have other strides than in eager.
    Autograd may save the clone.
    """
    for node in gm.graph.find_nodes(op="call_method"):
        written = node.args[0] if node.args and node.target.endswith("_") else None
        tensor = example_tensor(written)
        if tensor is None or tensor.is_contiguous():
            continue
        functional = node.target[:-1]
        result = _example_result(tensor, functional, node)
        if result is None or not _is_restrided(result, tensor):
            continue
        with gm.graph.inserting_before(node):
            old = gm.graph.call_method("clone", (written,))
            value = gm.graph.call_method(functional, (old, *node.args[1:]), node.kwargs)
            value.meta = {**node.meta, "example_value": result}
            copy = gm.graph.call_method("copy_", (node.args[0], value))
        node.replace_all_uses_with(copy, propagate_meta=True)
        gm.graph.erase_node(node)
        gm.recompile()
    return gm, ()


def _example_result(tensor: FakeTensor, method: str, node: Node) -> torch.Tensor | None:
    """Return the example result of another method with a node's arguments; None if it fails."""
    function = getattr(tensor, method, None)
    if not callable(function):  # `uniform_` has no variant without the underscore
        return None
    arguments = node.args[1:], node.kwargs
    args, kwargs = map_arg(arguments, lambda n: n.meta.get("example_value"))
    try:
        with tensor.fake_mode, torch.no_grad():
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
    hints = [[size_hint(n) for n in (*t.shape, *t.stride())] for t in (result, tensor)]
    rank = tensor.dim()
    return hints[0][:rank] == hints[1][:rank] and hints[0] != hints[1]
