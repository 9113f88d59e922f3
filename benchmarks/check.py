"""Compare a compiled seed program with its float64 reference: outputs and gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.seeds import RNG_SEED, Dropout, Inputs, Output, Program, Seed

EPSILON = torch.finfo(torch.float32).eps
MIN_LIMIT = 32 * EPSILON  # errors up to this are accepted, however exact eager is
EAGER_ERROR_FACTOR = 8.0  # above that, the error may be this many times eager's
MAX_SIGMAS = 6.0  # of the drop rate; a correct program fails one run in 5e8

Compile = Callable[[Program], Program]


@dataclass(frozen=True)
class Comparison:
    """The error of one tensor of the compiled program, and its limit.

    Errors are relative to the magnitude of each element plus the root mean square of the tensor.
    """

    tensor: str
    error: float
    limit: float

    @property
    def is_within_limit(self) -> bool:
        return self.error <= self.limit


def check(
    seed: Seed, inputs: Inputs, compiled: Program, compile_: Compile
) -> tuple[Comparison, ...]:
    """Compare every output and gradient of `compiled` with the reference.

    `compile_` compiles a variant of programs with dropout.
    """
    if seed.dropout is not None:
        return check_dropout(seed.dropout, seed, inputs, compiled, compile_)
    reference = seed.reference or seed.program
    got = run(compiled, inputs)
    return tuple(compare(got, run(seed.program, inputs), run(reference, widen(inputs))))


def check_dropout(
    dropout: Dropout, seed: Seed, inputs: Inputs, compiled: Program, compile_: Compile
) -> tuple[Comparison, ...]:
    """Recover the mask that the compiled program drew, and compare the rest given that mask.

    A compiled variant returns the dropped tensor as one more output, which shows its mask. The mask
    of the program itself is where the gradient of x is nonzero. Where the residual's gradient
    vanishes too, the variant's mask is used: both draw the same random numbers.
    """
    p, tail = dropout.p, dropout.tail

    def variant(x: Tensor, bias: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        dropped = F.dropout(x + bias, p, training=True)
        return tail(dropped, *rest), dropped

    def masked(mask: Tensor) -> Program:
        def masked_program(x: Tensor, bias: Tensor, *rest: Tensor) -> Tensor:
            return tail((x + bias) * mask.to(x.dtype) / (1.0 - p), *rest)

        return masked_program

    variant_results = run(compile_(variant), inputs, outputs=1)
    variant_mask = variant_results.pop("output 1") != 0
    got = run(compiled, inputs)
    mask = torch.where(got["gradient 2"] != 0, got["gradient 0"] != 0, variant_mask)
    comparisons = [compare_drop_rate(mask, p)]
    for prefix, drawn, results in (("", mask, got), ("variant's ", variant_mask, variant_results)):
        reference = masked(drawn)
        eager, exact = run(reference, inputs), run(reference, widen(inputs))
        comparisons += compare(results, eager, exact, prefix)
    return tuple(comparisons)


def compare_drop_rate(mask: Tensor, p: float) -> Comparison:
    """Compare the rate of dropped elements with the probability."""
    rate = 1.0 - mask.double().mean().item()
    sigma = (p * (1.0 - p) / mask.numel()) ** 0.5
    return Comparison("drop rate", abs(rate - p), MAX_SIGMAS * sigma)


def run(program: Program, inputs: Inputs, outputs: int | None = None) -> dict[str, Tensor]:
    """Return outputs by name, and gradients if inputs require any, for a fixed random seed.

    Only the first `outputs` outputs are differentiated, by default all.
    """
    torch.manual_seed(RNG_SEED)
    results = as_tuple(program(*inputs))
    named = {f"output {i}": result.detach() for i, result in enumerate(results)}
    for i, gradient in gradients(results[:outputs], inputs):
        named[f"gradient {i}"] = gradient
    return named


def gradients(results: Sequence[Tensor], inputs: Inputs) -> list[tuple[int, Tensor]]:
    """Return the gradient of each input that requires one, for fixed gradients of the results."""
    leaves = [(i, x) for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not leaves:
        return []
    found = torch.autograd.grad(results, [x for _, x in leaves], output_gradients(results))
    return [(i, gradient) for (i, _), gradient in zip(leaves, found, strict=True)]


def output_gradients(results: Sequence[Tensor]) -> list[Tensor]:
    """Return uniform gradients for the results, the same in every precision."""
    generator = torch.Generator().manual_seed(RNG_SEED)
    gradients = [torch.rand(result.shape, generator=generator) for result in results]
    return [d.to(result.device, result.dtype) for d, result in zip(gradients, results, strict=True)]


def compare(
    got: dict[str, Tensor], eager: dict[str, Tensor], exact: dict[str, Tensor], prefix: str = ""
) -> list[Comparison]:
    """Compare each tensor; one that is missing or has another shape or dtype fails."""
    comparisons = []
    for tensor, reference in exact.items():
        limit = max(MIN_LIMIT, EAGER_ERROR_FACTOR * error(eager[tensor], reference))
        distance = error(got[tensor], reference) if tensor in got else float("inf")
        if tensor in got and got[tensor].dtype != eager[tensor].dtype:
            distance = float("inf")
        comparisons.append(Comparison(prefix + tensor, distance, limit))
    return comparisons


def error(got: Tensor, reference: Tensor) -> float:
    """Return the largest error of an element, relative to it plus the root mean square of all."""
    finite = reference.isfinite()
    if got.shape != reference.shape or not torch.equal(got.isfinite(), finite):
        return float("inf")
    got = got.double()
    if not torch.allclose(got[~finite], reference[~finite].double(), equal_nan=True):
        return float("inf")
    got, reference = got[finite], reference[finite].double()
    if reference.numel() == 0:
        return 0.0
    scale = reference.abs() + reference.square().mean().sqrt()
    difference = (got - reference).abs()
    return torch.where(difference == 0, 0.0, difference / scale).max().item()


def widen(inputs: Inputs) -> Inputs:
    """Return the inputs in float64, as new leaves."""
    return tuple(
        x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
        for x in inputs
    )


def as_tuple(output: Output) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)
