"""The seed programs with their inputs and their references."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import programs

Size = Literal["small", "full"]
Inputs = tuple[Tensor | int | bool, ...]
Output = Tensor | tuple[Tensor, ...]
Program = Callable[..., Output]
SeedInputMaker = Callable[[Size, torch.device], Inputs]

RNG_SEED = 2024  # set before every run of a program, so that it initializes its modules equally


@dataclass(frozen=True)
class Dropout:
    """The parts of a program `tail(dropout(x + bias, p), *rest)` with inputs `x, bias, *rest`."""

    p: float
    tail: Callable[..., Tensor]


@dataclass(frozen=True)
class Seed:
    """A program to fuse.

    `kernels` is the number of kernels that eager launches for the small inputs, forward and
    backward together. `reference` takes the same inputs in any precision and computes the same; by
    default it is the program itself. A program with `dropout` has no reference: the check passes
    the mask that the compiled program drew to `tail`.
    """

    name: str
    program: Program
    make: SeedInputMaker
    kernels: int
    backward: bool = False
    reference: Program | None = None
    dropout: Dropout | None = None

    def make_inputs(self, size: Size, device: str = "cpu") -> Inputs:
        """Return the inputs, the same numbers on every call; those with gradients require grad."""
        torch.manual_seed(RNG_SEED)
        inputs = self.make(size, torch.device(device))
        if not self.backward:
            return inputs
        return tuple(x.requires_grad_() if isinstance(x, Tensor) else x for x in inputs)


def pick(name: str) -> Seed:
    """Return the seed of that name; raise KeyError if there is none."""
    return {seed.name: seed for seed in SEEDS}[name]


def normal(full: tuple[int, ...], small: tuple[int, ...], count: int = 1) -> SeedInputMaker:
    """Return a function that makes `count` normal tensors of one shape."""

    def make(size: Size, device: torch.device) -> Inputs:
        shape = full if size == "full" else small
        return tuple(torch.randn(shape, device=device) for _ in range(count))

    return make


def rows(full: tuple[int, int, int], small: tuple[int, int, int], *flags: bool) -> SeedInputMaker:
    """Return a function that makes a normal matrix [batch * length, width], batch and flags."""

    def make(size: Size, device: torch.device) -> Inputs:
        batch, length, width = full if size == "full" else small
        return torch.randn(batch * length, width, device=device), batch, *flags

    return make


def mlp_inputs(size: Size, device: torch.device) -> Inputs:
    b, d, f = (512, 2048, 4096) if size == "full" else (32, 64, 128)
    return tuple(torch.randn(shape, device=device) for shape in ((b, d), (d, f), (d, f), (f, d)))


def stacked_inputs(size: Size, device: torch.device) -> Inputs:
    slices, length, width = (16, 1024, 256) if size == "full" else (4, 8, 32)
    return torch.rand(slices * length * width, device=device), length, width


def stacked_inputs_with_weights(size: Size, device: torch.device) -> Inputs:
    x, length, width = stacked_inputs(size, device)
    assert isinstance(width, int)
    project = nn.Linear(width, 1, device=device)
    return x, project.weight.detach(), project.bias.detach(), length


def norm_inputs(size: Size, device: torch.device) -> Inputs:
    shape = (64, 128, 1024) if size == "full" else (4, 16, 72)
    x, bias = torch.randn(shape, device=device), torch.randn(shape[-1], device=device)
    x[x + bias == 0.0] = 1.0  # so that zeros after dropout are dropped elements
    weight, shift = torch.randn(2, shape[-1], device=device).unbind()
    return x, bias, torch.rand(shape, device=device), weight.clone(), shift.clone()


def rms_inputs(size: Size, device: torch.device) -> Inputs:
    return norm_inputs(size, device)[:-1]


def heads_inputs(size: Size, device: torch.device) -> Inputs:
    batch, heads, length, width = (64, 12, 128, 64) if size == "full" else (2, 12, 8, 16)
    return torch.randn(batch * heads, length, width, device=device), heads


def stacked_reference(x: Tensor, length: int, width: int) -> Tensor:
    """`combined` with the projection drawn in float32, as the program draws it, then widened."""
    project = nn.Linear(width, 1, device=x.device).to(x.dtype)
    slices = F.layer_norm(x.view(-1, length, width), (width,), eps=0.0)
    return F.relu(project(torch.tanh(slices)))


def view_chains() -> tuple[Seed, ...]:
    """Return the seeds of `view_chain` with each combination of its three views."""
    seeds = []
    for first, middle, last in product((True, False), repeat=3):
        included = "".join(
            letter for letter, on in zip("abc", (first, middle, last), strict=True) if on
        )
        make = rows((64, 128, 3072), (4, 8, 33), first, middle, last)
        seeds.append(Seed(f"view_chain_{included or 'none'}", programs.view_chain, make, kernels=2))
    return tuple(seeds)


WIDE = (64, 128, 3072)
NARROW = (4, 8, 33)

SEEDS: tuple[Seed, ...] = (
    Seed("complex_activation", programs.complex_activation, normal((4096, 4096), (33, 65), 2), 6),
    Seed("mlp_unused_product", programs.mlp_unused_product, mlp_inputs, 4),
    Seed("split_stack", programs.split_stack, stacked_inputs, 13, reference=stacked_reference),
    Seed("combined", programs.combined, stacked_inputs, 6, reference=stacked_reference),
    Seed("split_stack_weights", programs.split_stack_weights, stacked_inputs_with_weights, 11),
    Seed("combined_weights", programs.combined_weights, stacked_inputs_with_weights, 4),
    Seed(
        "norm_composite",
        programs.composite,
        norm_inputs,
        9,
        backward=True,
        dropout=Dropout(programs.DROP, programs.composite_tail),
    ),
    Seed(
        "norm_primitive",
        programs.primitive,
        norm_inputs,
        41,
        backward=True,
        dropout=Dropout(programs.DROP, programs.primitive_tail),
    ),
    Seed(
        "norm_rms",
        programs.rms,
        rms_inputs,
        29,
        backward=True,
        dropout=Dropout(programs.DROP, programs.rms_tail),
    ),
    Seed("norm_composite_keep_all", programs.composite_keep_all, norm_inputs, 5, backward=True),
    Seed("gelu", programs.gelu, normal((8192, 3072), (32, 33)), 5),
    Seed("gelu_bookends", programs.gelu_bookends, rows(WIDE, NARROW), 5),
    Seed("gelu_bookends_kept", programs.gelu_bookends_kept, rows(WIDE, NARROW), 5),
    Seed("heads_to_rows", programs.heads_to_rows, heads_inputs, 1),
    Seed("softmax", programs.softmax, normal((8192, 3072), (32, 97)), 1),
    *view_chains(),
    Seed("lone_view", programs.lone_view, rows(WIDE, NARROW), 0),
    Seed("lone_reshape", programs.lone_reshape, normal((8192, 3072), (32, 33)), 0),
)
