"""Arguments that are results of unfinished collectives. The program gets plain tensors for them.

Eager wraps such a result in AsyncCollectiveTensor, which waits where it is first read. AOTAutograd
waits for an argument outside of autograd, so that its gradient is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tofuse.capture.aot.boxed import CompiledFunction
from tofuse.capture.fx.aliases import storage_id, written_nodes
from tofuse.capture.fx.node_tensors import strided_fake_tensor
from tofuse.torch_internals.collective_tensors import AsyncCollectiveTensor


def unwrap_async_inputs(inputs: Sequence[object]) -> tuple[Sequence[object], list[int]]:
    """Return the inputs with plain fake tensors for such results, and their positions."""
    positions = [k for k, x in enumerate(inputs) if isinstance(x, AsyncCollectiveTensor)]
    if not positions:
        return inputs, []
    return [_plain(x) if isinstance(x, AsyncCollectiveTensor) else x for x in inputs], positions


def writes_async_input(gm: GraphModule) -> bool:
    """Return whether a program may write into such a result, for which PyTorch must run it."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    storages = {s for n in placeholders if (s := _storage(n)) is not None and _is_async(n)}
    if not storages:
        return False
    return any(_storage(w) in storages for n in gm.graph.nodes for w in written_nodes(n))


def wait_for_arguments(run: CompiledFunction, positions: Sequence[int]) -> CompiledFunction:
    """Return `run`, called with the results at these positions after they were waited for."""
    if not positions:
        return run

    def call(*args: object) -> object:
        waited = list(args)
        for k in positions:
            waited[k] = _Wait.apply(args[k])
        return run(*waited)

    return call


def _is_async(node: Node) -> bool:
    return isinstance(node.meta.get("example_value"), AsyncCollectiveTensor)


def _storage(node: Node) -> object:
    """Return the identity of the memory of a node's tensor; None without one."""
    value = node.meta.get("example_value")
    value = value.elem if isinstance(value, AsyncCollectiveTensor) else value
    tensor = strided_fake_tensor(value)
    return None if tensor is None else storage_id(tensor)


def _plain(x: AsyncCollectiveTensor) -> Tensor:
    plain = x.elem.new_empty_strided(x.size(), x.stride())
    return plain.requires_grad_(x.requires_grad)


class _Wait(torch.autograd.Function):
    """The tensor inside an AsyncCollectiveTensor, ready to be read."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        waited: Tensor = x.trigger_wait() if isinstance(x, AsyncCollectiveTensor) else x
        return waited.detach()  # which is no view: it may be written

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient
