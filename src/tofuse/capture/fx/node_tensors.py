"""The tensor behind a node of Dynamo's program: its memory, its bytes, its name."""

from __future__ import annotations

import math

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import Target

from tofuse.capture.fx.sizes import at_first_call


def tensor_of(node: Node) -> torch.Tensor | None:
    """What stands for a node's tensor, if that lies in memory by strides."""
    return _plain(node.meta.get("example_value"))


def _plain(value: object) -> torch.Tensor | None:
    """The value, if it stands for a tensor that lies in memory by strides."""
    if not isinstance(value, FakeTensor):  # but for instance a subclass that holds some
        return None
    return value if value.layout is torch.strided and value.device.type != "meta" else None


def memory(tensor: torch.Tensor) -> int:
    """The same number for tensors that share memory."""
    return tensor.untyped_storage()._cdata


def nbytes(argument: object) -> int:
    """How many bytes a node's tensor has; none where the argument is no such node."""
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(map(at_first_call, value.shape)) * value.itemsize


def name_of(target: Target) -> str:
    """The name of the function or method that a node calls."""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def held_tensors(gm: GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that a program has as attributes, an optimiser's for instance, in the order in
    which AOTAutograd puts them before the arguments."""
    parameters = gm.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(gm.named_buffers(remove_duplicate=False))}
