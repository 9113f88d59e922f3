"""A mode in which AOTAutograd records each size of a backward when it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import maybe_disable_thunkify
from torch.overrides import TorchFunctionMode

from tofuse.torch_internals.dispatch import is_traceable_wrapper_subclass


def record_backward_sizes(gm: GraphModule) -> AbstractContextManager[object]:
    """Return a context for tracing a program with tensor subclasses; none for other programs.

    Torch records a size of the backward when an operator reads it, and looks unknown sizes up by
    the symbol. DTensor computes with sizes that the trace does not know. If the size of a result
    is the symbol of an unknown operand (`max(s0, 1)` is s0), the operand is looked up as the
    result, which never ends. A size that is recorded at once finds the argument of that symbol.
    """
    values = (n.meta.get("example_value") for n in gm.graph.nodes)
    return _BackwardSizes() if any(map(is_traceable_wrapper_subclass, values)) else nullcontext()


class _BackwardSizes(TorchFunctionMode):
    """Records sizes at once inside `torch.autograd.grad`, with which AOTAutograd differentiates."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        at_once = maybe_disable_thunkify() if func is torch.autograd.grad else nullcontext()
        with at_once:
            return func(*args, **(kwargs or {}))
