"""AOTAutograd: its entry points, the metadata that it makes, and torch's parts of a partition."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from tofuse.torch_internals.private_names import TRACING, always, essential, private, takes

if TYPE_CHECKING:
    from torch._dynamo.backends.common import aot_autograd as aot_autograd
    from torch._functorch._aot_autograd.descriptors import (
        InputMutationAOTOutput as InputMutationAOTOutput,
    )
    from torch._functorch._aot_autograd.descriptors import TangentAOTInput as TangentAOTInput
    from torch._functorch._aot_autograd.schemas import AOTDispatchCompiler as AOTDispatchCompiler
    from torch._functorch._aot_autograd.schemas import MemoryFormatMeta as MemoryFormatMeta
    from torch._functorch._aot_autograd.schemas import OutputType as OutputType
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta as PlainTensorMeta
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta as ViewAndMutationMeta
    from torch._functorch.aot_autograd import aot_function as aot_function
    from torch._functorch.partitioners import _extract_fwd_bwd_modules as extract_forward_backward
    from torch._functorch.partitioners import cleanup_recompute_tags as cleanup_recompute_tags
    from torch._functorch.partitioners import must_recompute as must_recompute
    from torch._guards import TracingContext as TracingContext
    from torch._guards import tracing as tracing
else:
    AOTDispatchCompiler = ViewAndMutationMeta = object  # only in annotations
    (aot_autograd,) = essential("torch._dynamo.backends.common", "aot_autograd")
    InputMutationAOTOutput, TangentAOTInput = essential(
        "torch._functorch._aot_autograd.descriptors", "InputMutationAOTOutput", "TangentAOTInput"
    )
    MemoryFormatMeta, OutputType, PlainTensorMeta = essential(
        "torch._functorch._aot_autograd.schemas",
        "MemoryFormatMeta",
        "OutputType",
        "PlainTensorMeta",
    )
    _AOT = ("fw_compiler", "bw_compiler", "partition_fn", "decompositions", "inference_compiler")
    _SAVED = ("saved_values", "saved_sym_nodes", "num_fwd_outputs", "static_lifetime_input_nodes")
    (aot_function,) = essential(
        "torch._functorch.aot_autograd", "aot_function", lost=TRACING, check=takes(*_AOT)
    )
    (extract_forward_backward,) = essential(
        "torch._functorch.partitioners", "_extract_fwd_bwd_modules", check=takes(*_SAVED)
    )
    cleanup_recompute_tags, must_recompute = essential(
        "torch._functorch.partitioners", "cleanup_recompute_tags", "must_recompute"
    )
    TracingContext, tracing = essential("torch._guards", "TracingContext", "tracing")


# A part of the names of AOTAutograd's files, and of the code that it generates.
_OWN_CODE = os.path.join("torch", "_functorch", "_aot_autograd", "")

# torch 2.11 has another mark, which guards compare
mark_dynamic_result: Callable[[torch.Tensor, set[int]], None] = private(
    "torch._functorch._aot_autograd.runtime_wrappers",
    "mark_dynamo_propagated_dynamic_indices",
    "",
    always(None),
)


def fake_argument(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the fake tensor that AOTAutograd will trace for an argument of Dynamo's program.

    Return None outside of a compilation, or if Dynamo has recorded no sizes for the argument.
    """
    context = TracingContext.try_get()
    known = getattr(context, "tensor_to_context", {})
    if context is None or context.fake_mode is None or tensor not in known:
        return None
    sizes = known[tensor]
    source = getattr(sizes, "tensor_source", None)
    made = context.fake_mode.from_tensor(tensor, symbolic_context=sizes, source=source, trace=False)
    return made if isinstance(made, torch.Tensor) else None


def is_rejection(error: Exception) -> bool:
    """Return whether AOTAutograd failed, not the program that it traced or ran.

    It asserts what it needs, and fails in its own code for some arguments that share memory. A
    RuntimeError there is of an operator that it calls for the program: a write into zeros without
    memory.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    in_own_code = _OWN_CODE in frames[-1].f_code.co_filename
    return isinstance(error, AssertionError) or (
        in_own_code and not isinstance(error, RuntimeError)
    )


class MarkedBoxed(Protocol):
    """A boxed function that AOTAutograd recognizes as boxed."""

    _boxed_call: bool

    def __call__(self, args: list[object], /) -> object: ...


def mark_boxed(function: Callable[[list[object]], object]) -> MarkedBoxed:
    """Return `function` with the mark by which AOTAutograd passes arguments in one list."""

    def call(args: list[object], /) -> object:
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # functorch's convention
    return call  # type: ignore[return-value]  # now it has the attribute
