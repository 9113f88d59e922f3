"""Call a program, in eager or compiled, or in float64, and differentiate its results."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from suites.fuzz.compare import Outcome
from suites.fuzz.program import Program, double_source, load_function, make_arguments

Function = Callable[..., object]


def call(
    program: Program,
    function: Function,
    sizes: Sequence[int],
    prepare: Callable[[list[Tensor]], list[Tensor]] | None = None,
    convert: Callable[[list[Tensor]], list[Tensor]] | None = None,
) -> Outcome:
    """Call a function with the arguments of sizes, and differentiate its results."""
    arguments, leaves = make_arguments(program, sizes, prepare or convert)
    torch.manual_seed(program.seed % 1000 + 1)
    returned = function(*arguments)
    assert isinstance(returned, tuple)
    results = list(returned)
    outcome = Outcome(results, arguments, [])
    wanted = [x for x in results if x.requires_grad]
    if leaves and wanted:
        tangents = [tangent(x, program.tangents, k) for k, x in enumerate(wanted)]
        outcome = dataclasses.replace(
            outcome,
            gradients=list(torch.autograd.grad(wanted, leaves, tangents, allow_unused=True)),
        )
    return outcome


def tangent(x: Tensor, kind: str, number: int) -> Tensor:
    """Return a random gradient of a result, the same in each run but for its dtype."""
    shape = list(x.shape)
    generator = torch.Generator().manual_seed(number)
    dtype = torch.complex128 if x.is_complex() else torch.float64
    if kind == "expanded" and shape:
        shape[0] = min(shape[0], 1)
    if kind == "transposed":
        shape = shape[::-1]
    values = torch.randn(shape, generator=generator, dtype=dtype)
    # numbers that bfloat16 holds: the referee has the same tangents
    values = (
        torch.view_as_complex(_short(torch.view_as_real(values)))
        if x.is_complex()
        else _short(values)
    )
    values = values.to(x.dtype)
    if kind == "transposed" and shape:
        return values.permute(*range(x.dim())[::-1])
    return values.expand(x.shape)


def _short(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def call_in_double(program: Program, sizes: Sequence[int], jitter: int = 0) -> Outcome:
    """Return the outcome in float64, with rounding errors in each operation if `jitter`."""
    generator = torch.Generator().manual_seed(jitter)

    def shake(x: Tensor, eps: float) -> Tensor:
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return x * (1 + eps * noise).to(x.dtype if x.is_complex() else torch.float64)

    def mix(x: Tensor, shaken: Tensor) -> Tensor:
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 4 - 2
        return x + (shaken - x) * noise.to(x.dtype if x.is_complex() else torch.float64)

    old = torch.get_default_dtype()
    function = load_function(double_source(program, bool(jitter)), jitter=shake, mix=mix)
    try:

        def run(*arguments: Tensor) -> object:
            torch.set_default_dtype(torch.float64)
            return function(*arguments)

        return call(program, run, sizes, convert=to_double)
    finally:
        torch.set_default_dtype(old)


def to_double(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors in float64; those that share memory still do."""
    wide: dict[int, Tensor] = {}

    def convert(x: Tensor) -> Tensor:
        if not (x.is_floating_point() or x.is_complex()):
            return x
        storage = x.untyped_storage()
        if not storage.nbytes():
            return x.to(torch.complex128 if x.is_complex() else torch.float64)
        if storage.data_ptr() not in wide:
            flat = torch.empty(0, dtype=x.dtype).set_(storage)
            dtype = torch.complex128 if x.is_complex() else torch.float64
            wide[storage.data_ptr()] = flat.to(dtype, copy=True)
        return wide[storage.data_ptr()].as_strided(x.shape, x.stride(), x.storage_offset())

    return [convert(x) for x in tensors]
