"""Calls that an executor takes whole, asked for by the types of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from tofuse.ir.executor import Request, Tensor

Claims = Callable[[Request], bool]
Result = Union[torch.Tensor, Sequence[Union[torch.Tensor, None]]]  # noqa: UP007  (run time)
Decomposition = Callable[..., Result]


def nobody(request: Request) -> bool:
    """Nothing is claimed."""
    return False


def unless_claimed(
    table: Mapping[torch._ops.OpOverload, Decomposition], claims: Claims
) -> dict[torch._ops.OpOverload, Decomposition]:
    """The table, but a call that is claimed is not taken apart."""
    if claims is nobody:
        return dict(table)
    return {op: _guarded(op, rule, claims) for op, rule in table.items()}


def claimed(node: Node, claims: Claims) -> bool:
    """Whether a call of an FX graph is claimed."""
    if claims is nobody:
        return False
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return claims(_request(str(node.target), values))


def _guarded(op: torch._ops.OpOverload, rule: Decomposition, claims: Claims) -> Decomposition:
    def decompose(*args: object, **kwargs: object) -> Result:
        if claims(_request(str(op), (args, kwargs))):
            return NotImplemented  # which tells torch to keep the call
        return rule(*args, **kwargs)

    return decompose


def _request(target: str, values: object) -> Request:
    tensors = dict.fromkeys(t for t in tree_leaves(values) if isinstance(t, torch.Tensor))
    return Request(target, tuple(map(_described, tensors)))


def _described(t: torch.Tensor) -> Tensor:
    shape = tuple(n if isinstance(n, int) else None for n in t.shape)
    return Tensor(shape, str(t.dtype).removeprefix("torch."), str(t.device))
