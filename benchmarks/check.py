"""Hold a compiled seed against its float64 reference, output and gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.seeds import RNG_SEED, Dropout, Inputs, Output, Program, Seed

EPSILON = torch.finfo(torch.float32).eps
FLOOR = 32 * EPSILON  # an error this small is right, however exact eager happens to be
SLACK = 8.0  # beyond the floor, a compiled program may err this many times as much as eager
SIGMAS = 6.0  # how far the share of dropped elements may stray; chance fails one run in 5e8

Compile = Callable[[Program], Program]


@dataclass(frozen=True)
class Finding:
    """One tensor that the compiled program gave, and how far it is off.

    Errors are relative to the magnitude of each element plus the root mean square of the whole.
    """

    what: str
    error: float
    limit: float

    @property
    def right(self) -> bool:
        return self.error <= self.limit


def check(seed: Seed, inputs: Inputs, compiled: Program, compile_: Compile) -> tuple[Finding, ...]:
    """Every output and gradient of `compiled`, held against the reference.

    `compile_` is needed for programs with dropout, of which it compiles a second form.
    """
    if seed.dropout is not None:
        return check_dropout(seed.dropout, seed, inputs, compiled, compile_)
    reference = seed.reference or seed.program
    got = run(compiled, inputs)
    return tuple(compare(got, run(seed.program, inputs), run(reference, widen(inputs))))


def check_dropout(
    dropout: Dropout, seed: Seed, inputs: Inputs, compiled: Program, compile_: Compile
) -> tuple[Finding, ...]:
    """Recover the mask the compiled program drew, and judge all else given that mask.

    A compiled twin with one more output, the dropped tensor itself, shows its mask directly. The
    program itself shows its mask in the gradient of x, which is zero where x was dropped; only
    where the residual's gradient vanishes too is the twin asked, which draws the same mask.
    """
    p, tail = dropout.p, dropout.tail

    def twin(x: Tensor, bias: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        dropped = F.dropout(x + bias, p, training=True)
        return tail(dropped, *rest), dropped

    def masked(mask: Tensor) -> Program:
        def given(x: Tensor, bias: Tensor, *rest: Tensor) -> Tensor:
            return tail((x + bias) * mask.to(x.dtype) / (1.0 - p), *rest)

        return given

    got_twin = run(compile_(twin), inputs, outputs=1)
    shown = got_twin.pop("output 1") != 0
    got = run(compiled, inputs)
    kept = torch.where(got["gradient 2"] != 0, got["gradient 0"] != 0, shown)
    findings = [share_dropped(kept, p)]
    for prefix, mask, result in (("", kept, got), ("twin's ", shown, got_twin)):
        reference = masked(mask)
        eager, exact = run(reference, inputs), run(reference, widen(inputs))
        findings += compare(result, eager, exact, prefix)
    return tuple(findings)


def share_dropped(kept: Tensor, p: float) -> Finding:
    """Whether the share of dropped elements is what chance allows."""
    share = 1.0 - kept.double().mean().item()
    sigma = (p * (1.0 - p) / kept.numel()) ** 0.5
    return Finding("share dropped", abs(share - p), SIGMAS * sigma)


def run(program: Program, inputs: Inputs, outputs: int | None = None) -> dict[str, Tensor]:
    """Outputs by name, and gradients if inputs require any, from the same random state each time.

    Only the first `outputs` outputs are differentiated, by default all.
    """
    torch.manual_seed(RNG_SEED)
    results = as_tuple(program(*inputs))
    named = {f"output {i}": result.detach() for i, result in enumerate(results)}
    for i, gradient in gradients(results[:outputs], inputs):
        named[f"gradient {i}"] = gradient
    return named


def gradients(results: Sequence[Tensor], inputs: Inputs) -> list[tuple[int, Tensor]]:
    """The gradient of each input that requires one, for a fixed gradient of each result."""
    wanted = [(i, x) for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        return []
    found = torch.autograd.grad(results, [x for _, x in wanted], output_gradients(results))
    return [(i, gradient) for (i, _), gradient in zip(wanted, found, strict=True)]


def output_gradients(results: Sequence[Tensor]) -> list[Tensor]:
    """Uniform numbers, the same in every precision."""
    generator = torch.Generator().manual_seed(RNG_SEED)
    drawn = [torch.rand(result.shape, generator=generator) for result in results]
    return [d.to(result.device, result.dtype) for d, result in zip(drawn, results, strict=True)]


def compare(
    got: dict[str, Tensor], eager: dict[str, Tensor], exact: dict[str, Tensor], prefix: str = ""
) -> list[Finding]:
    """One finding for each tensor; a missing one, or one of another shape, is off by infinity."""
    findings = []
    for what, reference in exact.items():
        limit = max(FLOOR, SLACK * error(eager[what], reference))
        off = error(got[what], reference) if what in got else float("inf")
        if what in got and got[what].dtype != eager[what].dtype:
            off = float("inf")
        findings.append(Finding(prefix + what, off, limit))
    return findings


def error(got: Tensor, reference: Tensor) -> float:
    """The largest error of an element, relative to it plus the root mean square of all."""
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
    """The inputs in float64, as leaves of their own."""
    return tuple(
        x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
        for x in inputs
    )


def as_tuple(output: Output) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)
