"""Run a program on its compiled graphs: inference, or an autograd.Function with a backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

import torch
from torch.autograd.graph import increment_version

from tofuse.cost.machine import SMALLEST_POOLED
from tofuse.ir.runtime_kind import InferenceRuntime, RuntimeKind, TrainingRuntime
from tofuse.runtime.double_backward import (
    EagerProgram,
    WeakArgument,
    double_backward,
    forbid_double_backward,
    reachable_leaves,
    recover_arguments,
    weak_argument,
)
from tofuse.runtime.execute import CompiledPlan
from tofuse.torch_internals.dispatch import DisableAutocast, autocast_on

TensorMeta = tuple[torch.Size, torch.dtype, torch.device]
Results = Union[torch.Tensor, Sequence[torch.Tensor]]  # noqa: UP007  (evaluated at run time)


class Context(torch.autograd.function.FunctionCtx):
    """What autograd passes to forward and backward."""

    saved_tensors: tuple[torch.Tensor, ...]
    saved_sizes: Sequence[object]
    unchecked: Sequence[torch.Tensor]  # saved tensors whose version autograd does not check
    arguments: Mapping[int, WeakArgument]  # by position
    results: Sequence[TensorMeta]  # of the differentiable results, in order

    def maybe_clear_saved_tensors(self) -> None: ...


def make_program(
    kind: RuntimeKind,
    forward: CompiledPlan,
    backward: CompiledPlan,
    eager: EagerProgram | None = None,
) -> Callable[..., Results]:
    """Return the program on its compiled graphs, which take their arguments in a list.

    `eager` runs in its place for a double backward.
    """
    if isinstance(kind, InferenceRuntime):
        return inference_program(kind, forward)
    return training_program(kind, forward, backward, eager)


def inference_program(kind: InferenceRuntime, forward: CompiledPlan) -> Callable[..., Results]:
    """Return the program, which returns its results in a list."""

    def plain(*tensors: torch.Tensor) -> Results:
        return forward([*tensors])

    mutated, returns_views = kind.mutated, any(kind.argument_views)

    def without_grad(*tensors: torch.Tensor) -> Results:
        with torch.no_grad():
            if mutated:
                increment_version([tensors[k] for k in mutated])
            results = forward([*tensors])
            if not returns_views:
                return results
            # a plan returns the argument itself for a view of all of it
            kinds = zip(results, kind.argument_views, kind.returned, strict=False)
            return [
                tensors[k] if k is not None else t.detach() if is_view else t
                for t, is_view, k in kinds
            ]

    return without_grad if kind.disables_grad or mutated or returns_views else plain


def training_program(
    kind: TrainingRuntime, forward: CompiledPlan, backward: CompiledPlan, eager: EagerProgram | None
) -> Callable[..., Results]:
    """Return the program, which returns its results in a tuple."""
    mutated, saved_sizes, non_parameters = kind.mutated, kind.saved_sizes, kind.non_parameters
    checked, unchecked = kind.checked_results, kind.unchecked_results
    first, last = len(mutated), len(mutated) + len(kind.differentiable)
    with_grad = [k for k, grad in enumerate(kind.differentiable) if grad]
    without_grad = [first + k for k, grad in enumerate(kind.differentiable) if not grad]
    tangents = [with_grad[k] for k in kind.tangents]
    some_unused = len(with_grad) > 1  # a loss may use some results only

    def run_backward(ctx: Context, *grads: torch.Tensor | None) -> tuple[object, ...]:
        sizes = ctx.saved_sizes if saved_sizes else ()
        given = [grads[k] for k in tangents]
        if some_unused:
            pairs = zip(given, kind.tangents, strict=True)
            given = [_zero(ctx.results[k]) if g is None else g for g, k in pairs]
        arguments = [*sizes, *ctx.saved_tensors, *given]
        if kind.written:
            _prepare_writes(kind, ctx, arguments)
        ctx.maybe_clear_saved_tensors()  # the plan releases each after its last use
        if autocast_on():
            with DisableAutocast():
                return tuple(backward(arguments))
        return tuple(backward(arguments))

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Context, *tensors: torch.Tensor) -> Results:
            made = forward([*tensors])
            ctx.save_for_backward(*[made[k] for k in checked])
            if unchecked:
                ctx.unchecked = [made[k] for k in unchecked]
            # after saving, so that autograd notices a write into a saved tensor
            for new, k in zip(made, mutated, strict=False):
                tensors[k].copy_(new)
            if non_parameters:
                ctx.arguments = {k: weak_argument(tensors[k]) for k in non_parameters}
            if some_unused:
                ctx.set_materialize_grads(False)
                results = [made[first + k] for k in with_grad]
                ctx.results = [(t.shape, t.dtype, t.device) for t in results]
            if saved_sizes:
                ctx.saved_sizes = [made[k] for k in saved_sizes]
            if without_grad:
                others = [t for k in without_grad if isinstance(t := made[k], torch.Tensor)]
                ctx.mark_non_differentiable(*others)  # but not sizes
            return tuple(made[first:last])

        @staticmethod
        @torch.compiler.disable  # a function compiled by Dynamo may run this backward
        def backward(ctx: Context, *grads: torch.Tensor | None) -> tuple[object, ...]:
            if not torch.is_grad_enabled():
                return run_backward(ctx, *grads)
            return differentiable_backward(kind, ctx, grads, run_backward, eager)

    # Function.apply, without its checks for functorch, which the caller has made
    apply: Callable[..., Results] = super(torch.autograd.Function, Fused).apply
    return apply


def _prepare_writes(kind: TrainingRuntime, ctx: Context, arguments: list[object]) -> None:
    """Insert the unchecked arguments of a backward, and count its writes for autograd's checks."""
    for k, tensor in zip(kind.unchecked, ctx.unchecked if kind.unchecked else (), strict=True):
        arguments.insert(k, tensor)
    tensors = (arguments[k] for k in kind.written)
    increment_version([t for t in tensors if isinstance(t, torch.Tensor)])


def _zero(meta: TensorMeta) -> torch.Tensor:
    """Return zeros as the gradient of a result that the loss does not use.

    Large ones are all one element of memory: that is worth a backward for these strides.
    """
    shape, dtype, device = meta
    if shape.numel() * dtype.itemsize < SMALLEST_POOLED:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def differentiable_backward(
    kind: TrainingRuntime,
    ctx: Context,
    grads: Sequence[torch.Tensor | None],
    run: Callable[..., tuple[object, ...]],
    eager: EagerProgram | None,
) -> tuple[object, ...]:
    """Return gradients that can be differentiated, or that raise an error if they are."""
    saved = ctx.saved_tensors  # raises if a saved tensor was written since
    weak = ctx.arguments if kind.non_parameters else {}
    arguments = recover_arguments(ctx, len(kind.requires_grad), weak)
    if kind.pure and eager is not None and all(a is not None for a in arguments):
        return double_backward(eager, arguments, kind.differentiable, grads)
    with torch.no_grad():
        gradients = run(ctx, *grads)
    return forbid_double_backward(gradients, reachable_leaves([ctx]), [*grads, *saved, *arguments])
