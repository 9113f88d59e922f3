"""Double backward: second derivatives computed by the eager program, or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeGuard
from weakref import ReferenceType, ref

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node

from tofuse.analysis.reachability import reachable

NOT_TWICE_DIFFERENTIABLE = (
    "this program, compiled by tofuse, cannot be differentiated twice: it draws random numbers, "
    "writes into its arguments, or one of its arguments no longer exists; run it in eager instead"
)
EagerProgram = Callable[[Sequence[object], Sequence[object]], Sequence[object]]
WeakArgument = ReferenceType[torch.Tensor] | object  # a tensor by weak reference, a number itself


def double_backward(
    eager: EagerProgram,
    arguments: Sequence[object],
    differentiable: Sequence[bool],
    grads: Sequence[torch.Tensor | None],
) -> tuple[object, ...]:
    """Return the gradients of a program's arguments, with an autograd graph of their own.

    `eager(arguments, aliases)` runs the eager program. `grads` has an entry for each result, None
    if the loss does not use it; results that are not `differentiable` have no gradient.
    """
    with torch.enable_grad():  # on aliases, because one argument may be computed from another
        aliases = [t.view_as(t) if _requires_grad(t) else t for t in arguments]
        results = eager(arguments, aliases)
        triples = zip(results, grads, differentiable, strict=True)
        outputs = [
            (r, g)
            for r, g, has_grad in triples
            if has_grad and isinstance(r, torch.Tensor) and g is not None
        ]
        gradients = torch.autograd.grad(
            [r for r, _ in outputs],
            [t for t in aliases if _requires_grad(t)],
            [g for _, g in outputs],
            create_graph=True,
            allow_unused=True,
        )
    remaining = iter(gradients)
    return tuple(next(remaining) if _requires_grad(t) else None for t in aliases)


def recover_arguments(
    ctx: FunctionCtx, count: int, weak: Mapping[int, WeakArgument]
) -> list[object]:
    """Return the arguments of an autograd.Function's call; None for each that no longer exists.

    `weak` has arguments by position. The others are parameters, to which the graph has edges.
    """
    arguments = list[object]()
    edges = iter(ctx.next_functions)  # type: ignore[attr-defined]  # it is the node, too
    for k in range(count):
        argument = weak.get(k)
        if k in weak and not isinstance(argument, ReferenceType):
            arguments.append(argument)
            continue
        node, _ = next(edges)
        variable = getattr(node, "variable", None)
        arguments.append(argument() if isinstance(argument, ReferenceType) else variable)
    return arguments


def weak_argument(argument: object) -> WeakArgument:
    """Return a weak reference to a tensor, and any other argument itself."""
    return ref(argument) if isinstance(argument, torch.Tensor) else argument


def _requires_grad(x: object) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and x.requires_grad


def forbid_double_backward(
    results: Sequence[object], leaves: Sequence[torch.Tensor], reachable: Sequence[object]
) -> tuple[object, ...]:
    """Return the results of a backward such that differentiating them raises an error.

    Autograd skips nodes without a path to the requested tensors. So the results get edges to the
    `leaves` and to the `reachable` tensors that require grad, as the true gradients may have.
    """
    gradients = [g for g in results if isinstance(g, torch.Tensor)]
    others = filter(_requires_grad, reachable)
    with torch.enable_grad():
        guarded = _RaiseInBackward.apply(len(gradients), *gradients, *leaves, *others)
    remaining = iter(guarded)
    return tuple(next(remaining) if isinstance(g, torch.Tensor) else g for g in results)


def reachable_leaves(nodes: Sequence[Node | FunctionCtx | None]) -> list[torch.Tensor]:
    """Return the leaf tensors that a backward pass from these autograd nodes reaches.

    The `ctx` of an autograd.Function's backward is its node.
    """
    found = reachable(
        (node for node in nodes if isinstance(node, Node)),
        lambda node: (n for n, _ in node.next_functions if isinstance(n, Node)),
    )
    # only AccumulateGrad nodes have a variable
    variables = (getattr(node, "variable", None) for node in found)
    return list(dict.fromkeys(v for v in variables if isinstance(v, torch.Tensor)))


class _RaiseInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: torch.Tensor) -> NoReturn:
        raise RuntimeError(NOT_TWICE_DIFFERENTIABLE)
