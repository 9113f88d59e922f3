"""A guard that runs calls in eager where kernels lack the derivatives."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from tofuse.torch_internals.torch_types import CompiledFunction
from tofuse.torch_internals.transforms import forward_mode_active, transforms_active


@dataclass
class DoubleBackwardState:
    """Whether gradients of a program were differentiated, which eager computes."""

    requested: bool = False


def add_derivative_guard(
    gm: GraphModule, compiled: CompiledFunction, double_backward: DoubleBackwardState
) -> CompiledFunction:
    """Return `compiled`, guarded: eager runs calls whose derivatives need the eager program.

    These are calls under forward-mode AD, which kernels don't implement; under functorch
    transforms, which must see PyTorch's operators; and all calls after a double backward, because a
    training loop repeats it in each step.
    """

    def run(*args: object) -> object:
        if forward_mode_active() or double_backward.requested or transforms_active():
            return gm.forward(*args)
        return compiled(*args)

    return run
