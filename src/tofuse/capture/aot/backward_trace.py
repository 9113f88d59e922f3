"""A mode for AOTAutograd's trace of a backward, which torch leaves incomplete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode, maybe_disable_thunkify
from torch.overrides import TorchFunctionMode

from tofuse.capture.fx.phases import BACKWARD_TAG
from tofuse.capture.fx.subgraphs import subgraph
from tofuse.torch_internals.dispatch import is_traceable_wrapper_subclass


def complete_backward_trace(gm: GraphModule) -> AbstractContextManager[object]:
    """Return a context for tracing a program of Dynamo; an empty one if torch's trace is complete.

    Two things are missing:

    - Torch tags what it records in the backward, but not the calls in the backward of an
      `autograd.Function`, which is a program inside Dynamo's program.
    - Torch records a size of the backward when an operator reads it, and looks unknown sizes up by
      the symbol. DTensor computes with sizes that the trace does not know. If the size of a result
      is the symbol of an unknown operand (`max(s0, 1)` is s0), the operand is looked up as the
      result, which never ends. A size that is recorded at once finds the argument of that symbol.
    """
    values = (n.meta.get("example_value") for n in gm.graph.nodes)
    has_subclasses = any(map(is_traceable_wrapper_subclass, values))
    if has_subclasses or any(subgraph(n) is not None for n in gm.graph.nodes):
        return _BackwardTrace(has_subclasses)
    return nullcontext()


class _BackwardTrace(TorchFunctionMode):
    """Completes the trace of `torch.autograd.grad`, with which AOTAutograd differentiates."""

    def __init__(self, records_sizes_at_once: bool) -> None:
        super().__init__()
        self.records_sizes_at_once = records_sizes_at_once

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        is_backward = func is torch.autograd.grad
        mode = get_proxy_mode() if is_backward else None
        known = set() if mode is None else set(mode.tracer.graph.nodes)
        at_once = is_backward and self.records_sizes_at_once
        with maybe_disable_thunkify() if at_once else nullcontext():
            result = func(*args, **(kwargs or {}))
        for node in () if mode is None else mode.tracer.graph.nodes:
            if node not in known:
                node.meta["partitioner_tag"] = BACKWARD_TAG
        return result
