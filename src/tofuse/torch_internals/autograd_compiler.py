"""AOTAutograd: its entry points, the metadata that it makes, and torch's parts of a partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch._aot_autograd.schemas import (
    AOTDispatchCompiler,
    MemoryFormatMeta,
    OutputType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)
from torch._functorch.aot_autograd import aot_function
from torch._functorch.config import get_hash as functorch_config_hash
from torch._functorch.partitioners import _extract_fwd_bwd_modules as extract_forward_backward
from torch._functorch.partitioners import (
    cleanup_recompute_tags,
    has_recomputable_ops,
    must_recompute,
)
from torch._guards import TracingContext, tracing

__all__ = [
    "MarkedBoxed",
    "mark_boxed",
    "AOTDispatchCompiler",
    "InputMutationAOTOutput",
    "MemoryFormatMeta",
    "OutputType",
    "PlainTensorMeta",
    "TracingContext",
    "ViewAndMutationMeta",
    "aot_autograd",
    "aot_function",
    "cleanup_recompute_tags",
    "extract_forward_backward",
    "functorch_config_hash",
    "has_recomputable_ops",
    "must_recompute",
    "tracing",
]


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
