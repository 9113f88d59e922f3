"""The calls that an executor claims whole, by operator and tensor types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

import torch
from torch.fx import Node

from tofuse.ir.executor import Request, Tensor
from tofuse.torch_internals.operators import OpOverload
from tofuse.torch_internals.trees import tree_leaves

ClaimPredicate = Callable[[Request], bool]
DecompositionResult = Union[torch.Tensor, Sequence[Union[torch.Tensor, None]]]  # noqa: UP007  (run time)
Decomposition = Callable[..., DecompositionResult]


def claim_nothing(request: Request) -> bool:
    """Claim no call."""
    return False


def skip_claimed_calls(
    table: Mapping[OpOverload, Decomposition],
    claims: ClaimPredicate,
    claimed_rules: Mapping[OpOverload, Decomposition],
) -> dict[OpOverload, Decomposition]:
    """Return the table with rules that keep claimed calls, or treat them by `claimed_rules`."""
    if claims is claim_nothing:
        return dict(table)
    return {
        op: _skip_if_claimed(op, rule, claims, claimed_rules.get(op)) for op, rule in table.items()
    }


def is_claimed(node: Node, claims: ClaimPredicate) -> bool:
    """Whether an executor claims a call of an FX graph."""
    if claims is claim_nothing:
        return False
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return claims(_request(str(node.target), values))


def _skip_if_claimed(
    op: OpOverload,
    rule: Decomposition,
    claims: ClaimPredicate,
    claimed_rule: Decomposition | None,
) -> Decomposition:
    def decompose(*args: object, **kwargs: object) -> DecompositionResult:
        if not claims(_request(str(op), (args, kwargs))):
            return rule(*args, **kwargs)
        if claimed_rule is None:
            return NotImplemented  # torch then keeps the call
        return claimed_rule(*args, **kwargs)

    return decompose


def _request(target: str, values: object) -> Request:
    tensors = dict.fromkeys(t for t in tree_leaves(values) if isinstance(t, torch.Tensor))
    return Request(target, tuple(map(_describe, tensors)))


def _describe(t: torch.Tensor) -> Tensor:
    shape = tuple(n if isinstance(n, int) else None for n in t.shape)
    return Tensor(shape, str(t.dtype).removeprefix("torch."), str(t.device))
