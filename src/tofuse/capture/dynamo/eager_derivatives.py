"""Calls that eager runs because derivatives of a kind no kernel has are taken of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch._C import _are_functorch_transforms_active as transforms_active
from torch.autograd import forward_ad
from torch.fx import GraphModule

from tofuse.torch_internals.torch_types import CompiledFunction


@dataclass
class Further:
    """Whether derivatives of a program's gradients were asked for, which eager computes."""

    asked: bool = False


def leave_derivatives(
    gm: GraphModule, compiled: CompiledFunction, further: Further
) -> CompiledFunction:
    """`compiled`, but `gm` where forward-mode derivatives are taken, for kernels have none, among
    functorch's transforms, which see what PyTorch's operators do, and once its gradients have been
    differentiated themselves, for whoever does that does it in each step."""

    def run(*args: object) -> object:
        if forward_ad._current_level >= 0 or further.asked or transforms_active():
            return gm.forward(*args)
        return compiled(*args)

    return run
