"""Workloads: a program, a step to time, and the minimum bytes that the step must move."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarks.check import as_tuple, output_gradients
from benchmarks.seeds import RNG_SEED, Inputs, Program, Size

WorkloadGroup = Literal[
    "table",
    "extra",
    "bf16",
    "sizes",
    "products",
    "attention",
    "neighbours",
    "models",
    "machine",
]
Results = tuple[Tensor, ...]
InputMaker = Callable[[Size, torch.dtype], Inputs]


@dataclass(frozen=True)
class Step:
    """One step to time. The minimum bytes are known after a run, and None if compute-bound."""

    run: Callable[[], Results]
    min_bytes: Callable[[], int | None]


@dataclass(frozen=True)
class Case:
    """The program for a peer to compile, and the step to time with the compiled program."""

    target: Program
    drive: Callable[[Program], Step]


CaseMaker = Callable[[Size, torch.dtype], Case]


@dataclass(frozen=True)
class Workload:
    """A program at a size and in a precision, with the same random inputs on every build.

    If `is_random`, the results depend on random numbers that each peer draws in its own way.
    `packed` makes a case of the operator that PyTorch has for the program, if it has one.
    """

    name: str
    group: WorkloadGroup
    make: CaseMaker
    dtype: torch.dtype = torch.float32
    is_random: bool = False
    packed: CaseMaker | None = None

    def build(self, size: Size, *, packed: bool = False) -> Case:
        make = self.packed if packed else self.make
        assert make is not None
        torch.manual_seed(RNG_SEED)
        return make(size, self.dtype)


class Call:
    """Calls of a program with its inputs, with gradients for inputs that require them.

    The minimum bytes are those of each input and each output. The backward adds each output
    gradient, each gradient, and the inputs again if `rereads_inputs`. An output that aliases
    an input is free.
    """

    def __init__(self, program: Program, inputs: Inputs, rereads_inputs: bool) -> None:
        self.program, self.inputs, self.rereads_inputs = program, inputs, rereads_inputs
        self.tensors = [x for x in inputs if isinstance(x, Tensor)]
        self.leaves = [x for x in self.tensors if x.requires_grad]
        self.output_grads: Sequence[Tensor] = ()
        self.bytes_moved = 0

    def run(self) -> Results:
        results = as_tuple(self.program(*self.inputs))
        if not self.leaves:
            if not self.bytes_moved:
                self.bytes_moved = nbytes(self.tensors) + nbytes(self.not_aliased(results))
            return results
        if not self.output_grads:
            self.output_grads = output_gradients(results)
        gradients = torch.autograd.grad(results, self.leaves, self.output_grads)
        if not self.bytes_moved:
            forward = nbytes(self.tensors) + nbytes(self.not_aliased(results))
            reread = nbytes(self.tensors) if self.rereads_inputs else 0
            self.bytes_moved = forward + reread + nbytes(self.output_grads) + nbytes(gradients)
        return (*results, *gradients)

    def not_aliased(self, results: Results) -> Results:
        """Return the results that do not alias an input."""
        old = {x.untyped_storage().data_ptr() for x in self.tensors}
        return tuple(y for y in results if y.untyped_storage().data_ptr() not in old)

    def step(self, min_bytes: int | None = None) -> Step:
        """Return a step of `run`; `min_bytes` overrides the count of this class."""
        return Step(self.run, lambda: min_bytes or self.bytes_moved)


def calls(
    program: Program,
    inputs: InputMaker,
    *,
    backward: bool = False,
    rereads_inputs: bool = True,
) -> CaseMaker:
    """Return a case maker that calls `program`, with gradients if `backward`."""

    def make(size: Size, dtype: torch.dtype) -> Case:
        case_inputs = inputs(size, dtype)
        if not backward:
            case_inputs = tuple(x.detach() if isinstance(x, Tensor) else x for x in case_inputs)
        return Case(program, lambda compiled: Call(compiled, case_inputs, rereads_inputs).step())

    return make


def nbytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of all tensors; a broadcast tensor counts its storage."""
    return sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in tensors)


def leaf(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a normal tensor that requires a gradient."""
    return torch.randn(tuple(shape)).to(dtype).requires_grad_()
