"""Gradients that are differentiated in their turn: eager computes them again, or they raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeGuard
from weakref import ReferenceType, ref

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node

TWICE = (
    "this program compiled by tofuse cannot be differentiated twice: it draws random numbers or "
    "writes into its arguments, or an argument is gone; use eager for that"
)
Eager = Callable[[Sequence[object], Sequence[object]], Sequence[object]]
SavedArgument = ReferenceType[torch.Tensor] | object  # of an argument: a number is itself


def again(
    eager: Eager,
    arguments: Sequence[object],
    wanted: Sequence[bool],
    grads: Sequence[torch.Tensor],
) -> tuple[object, ...]:
    """The gradients of a program's arguments, with a graph of their own.

    `eager` is the program as PyTorch runs it, of the arguments and what stands for each. Of its
    results those `wanted` have a gradient, each its own of `grads`.
    """
    with torch.enable_grad():  # of aliases: one argument may be computed from another
        own = [t.view_as(t) if _trains(t) else t for t in arguments]
        results = eager(arguments, own)
        pairs = zip(results, grads, wanted, strict=True)
        outputs = [(r, g) for r, g, want in pairs if want and isinstance(r, torch.Tensor)]
        found = torch.autograd.grad(
            [r for r, _ in outputs],
            [t for t in own if _trains(t)],
            [g for _, g in outputs],
            create_graph=True,
            allow_unused=True,
        )
    rest = iter(found)
    return tuple(next(rest) if _trains(t) else None for t in own)


def arguments_of(ctx: FunctionCtx, count: int, kept: Mapping[int, SavedArgument]) -> list[object]:
    """The arguments of an autograd function's call: those `kept` by place, and parameters, which
    its graph leads to; None for each that is gone."""
    found = list[object]()
    edges = iter(ctx.next_functions)  # type: ignore[attr-defined]  # it is the node, too
    for k in range(count):
        held = kept.get(k)
        if k in kept and not isinstance(held, ReferenceType):
            found.append(held)
            continue
        node, _ = next(edges)
        found.append(held() if isinstance(held, ReferenceType) else getattr(node, "variable", None))
    return found


def keep(argument: object) -> SavedArgument:
    """What finds an argument again, if it is still there."""
    return ref(argument) if isinstance(argument, torch.Tensor) else argument


def _trains(x: object) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and x.requires_grad


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
