"""What a workload is: a program, a step to time, and the fewest bytes the step must move."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarks.check import as_tuple, output_gradients
from benchmarks.seeds import RNG_SEED, Inputs, Program, Size

Group = Literal["table", "extra", "bf16", "sizes", "models", "machine"]
Results = tuple[Tensor, ...]
InputMaker = Callable[[Size, torch.dtype], Inputs]


@dataclass(frozen=True)
class Step:
    """One step to time. The least bytes are known once it has run; None where bytes do not bind."""

    run: Callable[[], Results]
    least_bytes: Callable[[], int | None]


@dataclass(frozen=True)
class Case:
    """What a peer is to compile, and the step to time, given what the peer made of it."""

    target: Program
    drive: Callable[[Program], Step]


Make = Callable[[Size, torch.dtype], Case]


@dataclass(frozen=True)
class Workload:
    """A program at a size and in a precision, from the same random numbers on every build.

    The results of one with `drawn` depend on random numbers that each peer draws in its own way.
    """

    name: str
    group: Group
    make: Make
    dtype: torch.dtype = torch.float32
    drawn: bool = False

    def build(self, size: Size) -> Case:
        torch.manual_seed(RNG_SEED)
        return self.make(size, self.dtype)


class Call:
    """Calls of a program with its inputs, and with gradients for those that require them.

    The least bytes are those of each input and each output once, and in the backward of each given
    gradient, each gradient made, and the inputs again if the backward `rereads` them. An output
    that aliases an input is free.
    """

    def __init__(self, program: Program, inputs: Inputs, rereads: bool) -> None:
        self.program, self.inputs, self.rereads = program, inputs, rereads
        self.tensors = [x for x in inputs if isinstance(x, Tensor)]
        self.wanted = [x for x in self.tensors if x.requires_grad]
        self.given: Sequence[Tensor] = ()
        self.moved = 0

    def run(self) -> Results:
        results = as_tuple(self.program(*self.inputs))
        if not self.wanted:
            self.moved = self.moved or nbytes(self.tensors) + nbytes(self.fresh(results))
            return results
        if not self.given:
            self.given = output_gradients(results)
        gradients = torch.autograd.grad(results, self.wanted, self.given)
        if not self.moved:
            forward = nbytes(self.tensors) + nbytes(self.fresh(results))
            again = nbytes(self.tensors) if self.rereads else 0
            self.moved = forward + again + nbytes(self.given) + nbytes(gradients)
        return (*results, *gradients)

    def fresh(self, results: Results) -> Results:
        """Those results that do not alias an input."""
        old = {x.untyped_storage().data_ptr() for x in self.tensors}
        return tuple(y for y in results if y.untyped_storage().data_ptr() not in old)

    def step(self, least_bytes: int | None = None) -> Step:
        """A step of `run`; `least_bytes` where the count of this class is not the least."""
        return Step(self.run, lambda: least_bytes or self.moved)


def calls(
    program: Program, inputs: InputMaker, *, backward: bool = False, rereads: bool = True
) -> Make:
    """Call `program` on the inputs, with gradients of those that require them if `backward`."""

    def make(size: Size, dtype: torch.dtype) -> Case:
        made = inputs(size, dtype)
        if not backward:
            made = tuple(x.detach() if isinstance(x, Tensor) else x for x in made)
        return Case(program, lambda compiled: Call(compiled, made, rereads).step())

    return make


def nbytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of the elements of all `tensors`; one that repeats its elements counts them once."""
    return sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in tensors)


def leaf(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A normal tensor that requires a gradient."""
    return torch.randn(tuple(shape)).to(dtype).requires_grad_()
