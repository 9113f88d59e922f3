"""Compilation of one pure function: traced by AOTAutograd, forward and backward."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.fx.traceback import preserve_node_meta
from torch.utils.checkpoint import CheckpointFunction

from tofuse.capture.aot.aot_graphs import AOTGraphs, NeedsEager
from tofuse.capture.aot.boxed import Results
from tofuse.capture.decomp.decompose import decompositions
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing
from tofuse.capture.pre_autograd.product_gradients import PRODUCTS
from tofuse.capture.pre_autograd.replace_functions import REPLACEMENTS
from tofuse.capture.pre_autograd.sharded_dropout import dropout
from tofuse.capture.trace.free_variables import (
    Function,
    SubstituteTensors,
    data_dependence_errors,
)
from tofuse.capture.trace.pytree import flatten
from tofuse.errors import CaptureError, message_of
from tofuse.gc_pause import pause_gc
from tofuse.ir.runtime_kind import TrainingRuntime
from tofuse.torch_internals.autograd_compiler import (
    TracingContext,
    aot_function,
    is_rejection,
    tracing,
)
from tofuse.torch_internals.dispatch import has_saved_tensor_hooks
from tofuse.torch_internals.fake_tensors import FakeTensorMode
from tofuse.torch_internals.trees import tree_flatten, tree_leaves, tree_unflatten


@dataclass(frozen=True)
class TracedProgram:
    """A compiled function on flat tensors, and its result for the tensors it was traced with."""

    run: Callable[..., object]
    first_result: object
    mutates_arguments: bool


@pause_gc()
def compile_program(
    function: Function,
    tensors: Sequence[torch.Tensor],
    argument_count: int,
    graphs: AOTGraphs,
    claims: ClaimPredicate = claim_nothing,
) -> TracedProgram:
    """Compile `function(*tensors[:argument_count])`; the other tensors are its free tensors."""
    flat_function = _FlatFunction(function, tensors, argument_count)
    traced = aot_function(
        flat_function.trace,
        fw_compiler=graphs.compiler("forward"),
        bw_compiler=graphs.compiler("backward"),
        inference_compiler=graphs.compiler("inference"),
        partition_fn=graphs.partition,
        decompositions=decompositions(claims=claims, trains=_trains(tensors)),
        keep_inference_input_mutations=graphs.inference_only,
    )
    tracing_context = tracing(TracingContext(FakeTensorMode()))
    with data_dependence_errors(), tracing_context, preserve_node_meta():
        try:
            flat_result = traced(*tensors)
        except NeedsEager as error:
            raise CaptureError(
                f"capture='trace' cannot compile a program if {error}; compile it without "
                "capture='trace'"
            ) from error
        except Exception as error:
            if _is_raised_in(CheckpointFunction.backward, error):
                raise CaptureError(
                    "capture='trace' cannot trace the gradient of a reentrant checkpoint; call it "
                    "with use_reentrant=False, or compile the program without capture='trace'"
                ) from error
            if not is_rejection(error):
                raise
            raise CaptureError(
                "capture='trace' cannot trace a program that AOTAutograd rejects; compile it "
                f"without capture='trace': {message_of(error)}"
            ) from error
    kind = graphs.runtime_kind(tensors, views=True)
    result = flat_function.rebuild(flat_result)
    if kind is None:
        run = flat_function.with_rebuilt_results(traced)
        return TracedProgram(run, result, graphs.mutates_arguments())
    flat_function.free_tensors = ()  # the module may replace them
    forward = graphs.forward().compiled()
    backward = graphs.backward() if isinstance(kind, TrainingRuntime) else forward
    run = flat_function.with_rebuilt_results(
        graphs.make_program(kind, forward, backward, flat_function.eager)
    )
    hooked = has_saved_tensor_hooks()
    if isinstance(kind, TrainingRuntime) and kind.pure and not hooked:
        result = run(*tensors)  # the first result, of AOTAutograd, has no second derivative
    return TracedProgram(run, result, graphs.mutates_arguments())


@dataclass(frozen=True)
class ResultIndex:
    """The position of a leaf's tensor among the flat results."""

    index: int


def unique_tensors(leaves: Sequence[object]) -> list[torch.Tensor]:
    """Return the distinct tensors among leaves, in order."""
    return list({id(x): x for x in leaves if isinstance(x, torch.Tensor)}.values())


class _FlatFunction:
    """A function from flat tensors to flat tensors, and the structure of its results."""

    def __init__(
        self, function: Function, tensors: Sequence[torch.Tensor], argument_count: int
    ) -> None:
        self.function, self.argument_count = function, argument_count
        self.free_tensors = tensors[argument_count:]
        self.argument_index = {id(t): k for k, t in enumerate(tensors[:argument_count])}
        self.leaves: list[object] = []
        self.spec = tree_flatten(None)[1]

    def trace(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return the function's flat results, and remember their structure."""
        free = list(zip(self.free_tensors, tensors[self.argument_count :], strict=True))
        mapping = {id(real): traced for real, traced in free}
        mapping |= {key: tensors[k] for key, k in self.argument_index.items()}
        real = {id(traced): real for real, traced in free}
        with SubstituteTensors(mapping, real, SUBSTITUTES):
            result = self.function(*tensors[: self.argument_count])
        leaves, self.spec = flatten(result)
        for leaf in leaves:
            if isinstance(leaf, (Awaitable, Iterator)):
                what = type(leaf).__name__
                raise CaptureError(f"the result has a {what}, whose operations are not run yet")
        leaves = [mapping.get(id(x), x) for x in leaves]
        flat = unique_tensors(leaves)
        place = {id(x): ResultIndex(k) for k, x in enumerate(flat)}
        self.leaves = [place.get(id(x), x) for x in leaves]
        return flat

    def eager(self, arguments: Sequence[object], aliases: Sequence[object]) -> list[torch.Tensor]:
        """Return the flat results of the eager program on aliases.

        Both sequences hold the arguments, then the free tensors.
        """
        pairs = zip(arguments, aliases, strict=True)
        mapping = {id(t): a for t, a in pairs if a is not t and isinstance(a, torch.Tensor)}
        with SubstituteTensors(mapping, {}, {}):
            result = self.function(*aliases[: self.argument_count])
        return unique_tensors([mapping.get(id(x), x) for x in flatten(result)[0]])

    def rebuild(self, tensors: object) -> object:
        """Return the function's result from its flat tensors."""
        assert isinstance(tensors, (list, tuple))
        leaves = [tensors[x.index] if isinstance(x, ResultIndex) else x for x in self.leaves]
        return tree_unflatten(leaves, self.spec)

    def with_rebuilt_results(self, program: Callable[..., Results]) -> Callable[..., object]:
        """Return `program` with its flat results rebuilt."""
        in_order = all(
            isinstance(x, ResultIndex) and x.index == k for k, x in enumerate(self.leaves)
        )
        if in_order and self.spec.is_leaf():
            return lambda *xs: program(*xs)[0]
        if in_order and self.spec.type is tuple and all(c.is_leaf() for c in self.spec.children()):
            return lambda *xs: tuple(program(*xs))
        return lambda *xs: self.rebuild(program(*xs))


def _is_raised_in(function: Function, error: BaseException) -> bool:
    """Return whether `function` itself raised the error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code is inspect.unwrap(function).__code__


def _decomposed_lstm(x: torch.Tensor, *rest: object) -> object:
    """Run an LSTM that torch decomposes if a gradient is taken.

    If only its weights require grad, torch would trace a call of oneDNN, which saves nothing for
    the backward. It does not if the input requires grad.
    """
    trains = any(isinstance(t, torch.Tensor) and t.requires_grad for t in tree_leaves(rest))
    if trains and torch.is_grad_enabled() and not x.requires_grad:
        x = x.detach().requires_grad_()
    return torch.lstm(x, *rest)  # type: ignore[call-overload]  # as the program calls it


SUBSTITUTES: dict[Function, Function] = {
    **REPLACEMENTS,
    **PRODUCTS,
    torch.lstm: _decomposed_lstm,
    F.dropout: dropout,
    torch.dropout: dropout,
}


def _trains(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether a call may have a backward."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
