"""The runtime of a program with a backward: an autograd.Function on its two compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import GraphModule

from tofuse.capture.aot.boxed import BoxedFunction, Results
from tofuse.capture.aot.double_backward import (
    EagerProgram,
    WeakArgument,
    double_backward,
    forbid_double_backward,
    reachable_leaves,
    recover_arguments,
    weak_argument,
)
from tofuse.capture.fx.aliases import is_impure
from tofuse.torch_internals.autograd_compiler import ViewAndMutationMeta
from tofuse.torch_internals.dispatch import DisableAutocast, autocast_on


class Context(torch.autograd.function.FunctionCtx):
    """What autograd passes to forward and backward."""

    saved_tensors: tuple[torch.Tensor, ...]
    saved_sizes: Sequence[object]
    arguments: Mapping[int, WeakArgument]  # by position

    def maybe_clear_saved_tensors(self) -> None: ...


@dataclass(frozen=True)
class TrainingRuntime:
    """How a program with a backward runs.

    The forward graph returns the new values of the arguments `mutated`, then the program's results,
    of which those `differentiable` have a gradient, then others. The backward graph takes the
    forward's results at the positions `saved_sizes` and `saved_tensors`, then `tangents`: positions
    among the gradients of the differentiable results.

    `requires_grad` has an entry for each argument. `non_parameters` are the positions of arguments
    that are not parameters of a module. A program is `pure` if it returns the same results for the
    same arguments and writes nothing.
    """

    mutated: tuple[int, ...]
    differentiable: tuple[bool, ...]
    saved_sizes: tuple[int, ...]
    saved_tensors: tuple[int, ...]
    tangents: tuple[int, ...]
    requires_grad: tuple[bool, ...]
    non_parameters: tuple[int, ...]
    pure: bool

    def make_program(
        self,
        forward: BoxedFunction,
        backward: BoxedFunction,
        eager: EagerProgram | None = None,
    ) -> Callable[..., Results]:
        """Return the program, which returns its results in a tuple.

        `eager` runs in its place for a double backward.
        """
        mutated, saved_sizes, saved_tensors = self.mutated, self.saved_sizes, self.saved_tensors
        non_parameters = self.non_parameters
        first, last = len(mutated), len(mutated) + len(self.differentiable)
        with_grad = [k for k, grad in enumerate(self.differentiable) if grad]
        without_grad = [first + k for k, grad in enumerate(self.differentiable) if not grad]
        tangents = [with_grad[k] for k in self.tangents]

        def run_backward(ctx: Context, *grads: torch.Tensor) -> tuple[object, ...]:
            sizes = ctx.saved_sizes if saved_sizes else ()
            arguments = [*sizes, *ctx.saved_tensors, *[grads[k] for k in tangents]]
            ctx.maybe_clear_saved_tensors()  # the plan releases each after its last use
            if autocast_on():
                with DisableAutocast():
                    return tuple(backward(arguments))
            return tuple(backward(arguments))

        class Fused(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Context, *tensors: torch.Tensor) -> Results:
                made = forward([*tensors])
                ctx.save_for_backward(*[made[k] for k in saved_tensors])
                # after saving, so that autograd notices a write into a saved tensor
                for new, k in zip(made, mutated, strict=False):
                    tensors[k].copy_(new)
                if non_parameters:
                    ctx.arguments = {k: weak_argument(tensors[k]) for k in non_parameters}
                if saved_sizes:
                    ctx.saved_sizes = [made[k] for k in saved_sizes]
                if without_grad:
                    others = [t for k in without_grad if isinstance(t := made[k], torch.Tensor)]
                    ctx.mark_non_differentiable(*others)  # but not sizes
                return tuple(made[first:last])

            @staticmethod
            @torch.compiler.disable  # a function compiled by Dynamo may run this backward
            def backward(ctx: Context, *grads: torch.Tensor) -> tuple[object, ...]:
                if not torch.is_grad_enabled():
                    return run_backward(ctx, *grads)
                return self.differentiable_backward(ctx, grads, run_backward, eager)

        # Function.apply, without its checks for functorch, which the caller has made
        apply: Callable[..., Results] = super(torch.autograd.Function, Fused).apply
        return apply

    def differentiable_backward(
        self,
        ctx: Context,
        grads: Sequence[torch.Tensor],
        run: Callable[..., tuple[object, ...]],
        eager: EagerProgram | None,
    ) -> tuple[object, ...]:
        """Return gradients that can be differentiated, or that raise an error if they are."""
        saved = ctx.saved_tensors  # raises if a saved tensor was written since
        weak = ctx.arguments if self.non_parameters else {}
        arguments = recover_arguments(ctx, len(self.requires_grad), weak)
        if self.pure and eager is not None and all(a is not None for a in arguments):
            return double_backward(eager, arguments, self.differentiable, grads)
        with torch.no_grad():
            gradients = run(ctx, *grads)
        return forbid_double_backward(
            gradients, reachable_leaves([ctx]), [*grads, *saved, *arguments]
        )


def training_runtime(
    graphs: tuple[GraphModule, GraphModule], meta: ViewAndMutationMeta
) -> TrainingRuntime | None:
    """Return the runtime of a forward and a backward graph, or None if it needs AOTAutograd's.

    It does if the backward takes a written argument, or if an argument that requires grad is
    written or gets no gradient. AOTAutograd hides these from autograd.
    """
    forward, backward = graphs
    requires_grad = [i.requires_grad for i in meta.input_info]
    mutated = [k for k, i in enumerate(meta.input_info) if i.mutates_data or i.mutates_metadata]
    if mutated != list(meta.mutated_inp_runtime_indices):
        return None
    gradients = backward.graph.find_nodes(op="output")[0].args[0]
    if len(gradients) != len(requires_grad):
        return None
    if any(g is None and required for g, required in zip(gradients, requires_grad, strict=True)):
        return None
    if any(requires_grad[k] or meta.input_info[k].mutates_metadata for k in mutated):
        return None
    names = [getattr(n, "name", None) for n in forward.graph.find_nodes(op="output")[0].args[0]]
    arguments = forward.graph.find_nodes(op="placeholder")
    last = len(mutated) + len(meta.output_info)
    mutated_names = {arguments[k].name for k in mutated}
    saved_sizes: list[int] = []
    saved_tensors: list[int] = []
    tangents: list[int] = []
    for node in backward.graph.find_nodes(op="placeholder"):
        target = str(node.target)
        if target.startswith("tangents_"):
            tangents.append(int(target.removeprefix("tangents_")) - 1)
        elif target not in names[last:] or target in mutated_names or tangents:
            return None
        elif isinstance(node.meta.get("val"), torch.Tensor):
            saved_tensors.append(last + names[last:].index(target))
        elif not saved_tensors:
            saved_sizes.append(last + names[last:].index(target))
        else:
            return None
    differentiable = tuple(o.requires_grad for o in meta.output_info)
    parameters = {k for k in meta.static_input_indices if requires_grad[k]}  # a module's
    non_parameters = tuple(k for k in range(len(requires_grad)) if k not in parameters)
    return TrainingRuntime(
        tuple(mutated),
        differentiable,
        tuple(saved_sizes),
        tuple(saved_tensors),
        tuple(tangents),
        tuple(requires_grad),
        non_parameters,
        not mutated and not any(map(is_impure, forward.graph.nodes)),
    )
