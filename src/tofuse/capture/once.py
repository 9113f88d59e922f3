"""Gradients that cannot be differentiated: whoever tries is told so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node

TWICE = "a program compiled by tofuse cannot be differentiated twice; use eager for that"


def final(
    made: Sequence[object], leaves: Sequence[torch.Tensor], reached: Sequence[object]
) -> tuple[object, ...]:
    """What a backward made, of which a derivative is an error.

    Autograd skips what does not lead to the tensors it is asked for: these lead to the `leaves`,
    and to what of `reached` requires grad, as the true gradients may.
    """
    places = [k for k, g in enumerate(made) if isinstance(g, torch.Tensor)]
    gradients = [g for g in made if isinstance(g, torch.Tensor)]
    others = [t for t in reached if isinstance(t, torch.Tensor) and t.requires_grad]
    with torch.enable_grad():
        found = _Final.apply(len(gradients), *gradients, *leaves, *others)
    whole = list(made)
    for k, g in zip(places, found, strict=True):
        whole[k] = g
    return tuple(whole)


def leaves(nodes: Sequence[Node | FunctionCtx | None]) -> list[torch.Tensor]:
    """The tensors that a backward pass from these nodes would give gradients to.

    What a custom function's backward is given is its node.
    """
    work = list(nodes)
    seen: set[Node] = set()
    found: dict[torch.Tensor, None] = {}
    while work:
        node = work.pop()
        if not isinstance(node, Node) or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # only the nodes that accumulate have one
        if isinstance(variable, torch.Tensor):
            found[variable] = None
        work += [n for n, _ in node.next_functions]
    return list(found)


class _Final(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: torch.Tensor) -> NoReturn:
        raise RuntimeError(TWICE)
