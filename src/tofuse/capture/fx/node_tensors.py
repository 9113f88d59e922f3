"""The example tensor of a node of Dynamo's graph: its storage, bytes and target name."""

from __future__ import annotations

import math

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Target

from tofuse.capture.fx.sizes import size_hint
from tofuse.torch_internals.fake_tensors import FakeTensor


def example_tensor(node: Node) -> FakeTensor | None:
    """Return a node's fake tensor, if it is strided and has memory."""
    return strided_fake_tensor(node.meta.get("example_value"))


def strided_fake_tensor(value: object) -> FakeTensor | None:
    """Return the value if it is a strided fake tensor that has memory."""
    if not isinstance(value, FakeTensor):  # such as a subclass that wraps fake tensors
        return None
    return value if value.layout is torch.strided and value.device.type != "meta" else None


def symbolic_item(node: Node) -> object:
    """Return the symbolic number that a node's tensor holds, if Dynamo knows it."""
    value = node.meta.get("example_value")
    return value.item_memo if isinstance(value, FakeTensor) else None


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
