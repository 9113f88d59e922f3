"""Values of FX nodes while tracing: tensors and the symbolic numbers in them; target names."""

from __future__ import annotations

import math

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Target

from tofuse.capture.fx.sizes import size_hint
from tofuse.torch_internals.fake_tensors import FakeTensor


def example_tensor(argument: object) -> FakeTensor | None:
    """Return the fake tensor of an argument that is a node, if it is strided and has memory."""
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    return strided_fake_tensor(value)


def strided_fake_tensor(value: object) -> FakeTensor | None:
    """Return the value if it is a strided fake tensor that has memory."""
    if not isinstance(value, FakeTensor):  # such as a subclass that wraps fake tensors
        return None
    return value if value.layout is torch.strided and value.device.type != "meta" else None


def has_symbolic_layout(tensor: torch.Tensor | None) -> bool:
    """Return whether a size or stride is symbolic."""
    sizes: tuple[int | torch.SymInt, ...] = ()
    if tensor is not None:
        sizes = (*tensor.shape, *tensor.stride())
    return not all(isinstance(n, int) for n in sizes)


def symbolic_item(node: Node) -> object:
    """Return the symbolic number that a node's tensor holds, if Dynamo knows it."""
    value = node.meta.get("example_value")
    return value.item_memo if isinstance(value, FakeTensor) else None


def symbolic_floats(gm: GraphModule) -> list[torch.SymFloat]:
    """Return the symbolic floats of a graph's arguments."""
    items = map(symbolic_item, gm.graph.find_nodes(op="placeholder"))
    return [x for x in items if isinstance(x, torch.SymFloat)]


def requires_grad(gm: GraphModule) -> bool:
    """Return whether a result of Dynamo's program requires grad."""
    outputs = next(n for n in gm.graph.nodes if n.op == "output").all_input_nodes
    values = [n.meta.get("example_value") for n in outputs]
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


def value_tensors(node: Node) -> list[torch.Tensor]:
    """Return the tensors of the value of a node of ATen's graph: one, or those of a tuple."""
    value = node.meta.get("val")
    group = value if isinstance(value, (list, tuple)) else (value,)
    return [t for t in group if isinstance(t, torch.Tensor)]


def node_nbytes(argument: object) -> int:
    """Return the bytes of a node's tensor; 0 for an argument without a tensor."""
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(map(size_hint, value.shape)) * value.itemsize


def target_name(target: Target) -> str:
    """Return the name of the function or method that a node calls."""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def module_tensors(gm: GraphModule) -> dict[str, torch.Tensor]:
    """Return a graph's parameters and buffers, such as an optimiser's state.

    The order is that in which AOTAutograd puts them before the arguments.
    """
    parameters = gm.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(gm.named_buffers(remove_duplicate=False))}
