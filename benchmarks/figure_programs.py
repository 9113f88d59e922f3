"""The programs of the README's figure, for PyTorch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Step = Callable[[], object]
Program = Callable[..., Tensor]


def activation(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu((torch.sin(x) * torch.cos(y) + x) * y)


def residual_norm(x: Tensor, residual: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x + bias + residual, (x.shape[-1],), weight)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8, weight, bias))


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


# name: program, shapes of the floating-point arguments, and whether the backward runs, too
PROGRAMS: dict[str, tuple[Program, tuple[tuple[int, ...], ...], bool]] = {
    "six-op activation": (activation, ((2048, 2048),) * 2, False),
    "bias + residual + layer norm": (
        residual_norm,
        ((4096, 1024), (4096, 1024), (1024,), (1024,)),
        False,
    ),
    "group norm + SiLU": (group_norm_silu, ((8, 64, 64, 64), (64,), (64,)), False),
    "rotary embedding": (rope, ((8, 16, 512, 64), (512, 64), (512, 64)), False),
    "SwiGLU": (swiglu, ((2048, 2048),) * 2, False),
    "softmax, forward + backward": (softmax, ((4096, 1024),), True),
    "cross-entropy, forward + backward": (cross_entropy, ((1024, 8192),), True),
}


def step(name: str, compile_program: Callable[[Program], Program]) -> Step:
    """Return a call of a compiled program, with its backward if it has one."""
    program, shapes, backward = PROGRAMS[name]
    torch.manual_seed(0)
    arguments = [torch.randn(shape, requires_grad=backward) for shape in shapes]
    labels = [torch.randint(0, shapes[0][1], (shapes[0][0],))] if program is cross_entropy else []
    call = compile_program(program)
    if not backward:
        return torch.no_grad()(lambda: call(*arguments, *labels))
    result = call(*arguments, *labels)
    ones = torch.ones_like(result)
    return lambda: torch.autograd.grad(call(*arguments, *labels), arguments, ones)
