"""Compares what a compiled call gave with what eager gave; float64 is the referee."""

import copy

import torch
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError
from torch.utils._pytree import tree_map

from suites.operators.calls import Call
from suites.operators.program import Outcome, run_eager, tensors_of
from suites.operators.random_results import ULPS, is_close, is_random
from tofuse.errors import CompileError

# The error may be twice eager's; where eager loses four bits, the maxima of two random errors
# differ more: over samples of householder_product, ours is 0.3 to 3.5 times eager's.
FACTOR, ILL_CONDITIONED, ILL_FACTOR = 2, 16, 8
JITTERS = 2  # runs that show what roundings of the operands change
WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def describe_difference(call: Call, got: Outcome, expected: Outcome) -> str | None:
    """Return what differs from eager; None if nothing does."""
    if got.error is not None or expected.error is not None:
        return compare_errors(got.error, expected.error)
    difference = _compare_form(got, expected)
    if difference is None:
        difference = _compare_values(call, got, expected)
    return difference


def compare_errors(got: Exception | None, expected: Exception | None) -> str | None:
    """Return how an error differs from eager's; None if it is of the same type."""
    if got is None:
        return f"returns; eager raises {show_error(expected)}"
    if expected is None:
        return f"raises {show_error(got)}"
    ours, eagers = _cause(got), _cause(expected)
    # an internal error is a RuntimeError, but of no operator
    internal = {isinstance(e, InternalTorchDynamoError) for e in (ours, eagers)}
    if isinstance(ours, type(eagers)) and len(internal) == 1:
        return None
    return f"raises {show_error(got)} for {show_error(expected)}"


def _cause(error: Exception) -> Exception:
    """Return the error in a backend, which Dynamo and `strict=True` wrap."""
    while True:
        inner = error.__cause__ if isinstance(error, CompileError) else None
        inner = error.inner_exception if isinstance(error, BackendCompilerFailed) else inner
        if not isinstance(inner, Exception):
            return error
        error = inner


def show_error(error: Exception | None) -> str:
    """Return the type of an error and the first line of its message."""
    error = None if error is None else _cause(error)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _compare_form(got: Outcome, expected: Outcome) -> str | None:
    """Compare number, types, shapes, strides and aliasing of the results."""
    if len(got.outputs) != len(expected.outputs):
        return f"{len(got.outputs)} results for {len(expected.outputs)}"
    for k, (a, b) in enumerate(zip(got.outputs, expected.outputs, strict=True)):
        difference = _form_difference(a, b, strides=True)
        if difference:
            return f"result {k}: {difference}"
    if got.aliases != expected.aliases:
        return f"aliasing: {_show_aliases(got)} for {_show_aliases(expected)}"
    for k, (a, b) in enumerate(zip(got.gradients, expected.gradients, strict=True)):
        difference = _form_difference(a, b, strides=False)
        if difference:
            return f"gradient {k}: {difference}"
    for k, (a, b) in enumerate(zip(got.arguments, expected.arguments, strict=True)):
        difference = _form_difference(a, b, strides=True)
        if difference:
            return f"argument {k} after the call: {difference}"
    return None


def _form_difference(a: object, b: object, *, strides: bool) -> str | None:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        if type(a) is not type(b):
            return f"{_name(a)} for {_name(b)}"
        if isinstance(a, torch.Tensor) or a == b or a != a:
            return None
        return f"{a!r} for {b!r}"
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return f"{_name(a)} for {_name(b)}"
    if a.requires_grad != b.requires_grad and strides:
        return f"requires_grad is {a.requires_grad} for {b.requires_grad}"
    if a.layout is not torch.strided:
        return None
    if a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
        return f"lazy conj, neg {a.is_conj(), a.is_neg()} for {b.is_conj(), b.is_neg()}"
    if strides and a.numel() > 1 and strides_over_one(a) != strides_over_one(b):
        return f"strides {a.stride()} for {b.stride()} of {tuple(a.shape)}"
    return None


def strides_over_one(t: torch.Tensor) -> list[int]:
    """Return the strides of the dimensions longer than one: the others have no meaning."""
    return [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1]


def _name(x: object) -> str:
    if not isinstance(x, torch.Tensor):
        return type(x).__name__
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def _show_aliases(outcome: Outcome) -> str:
    n = len(outcome.arguments)
    words = []
    for alias in outcome.aliases:
        if alias is None:
            words.append("new")
            continue
        index, same = alias
        other = f"argument {index}" if index < n else f"result {index - n}"
        words.append(f"{'is' if same else 'views'} {other}")
    return ", ".join(words)


def _compare_values(call: Call, got: Outcome, expected: Outcome) -> str | None:
    """Compare the numbers of all tensors with eager's, then with those of float64.

    Float64 is no referee of a result that varies by seed: it draws other numbers.
    """
    tensors = tensors_of(got)
    suspects = [
        k
        for k, (a, b) in enumerate(zip(tensors, tensors_of(expected), strict=True))
        if not is_close(a, b)
    ]
    if not suspects:
        return None
    reference = _run_wider(call)
    again = tensors_of(run_eager(call, seed=1))
    for k in suspects:
        a, b = tensors[k], tensors_of(expected)[k]
        assert a is not None and b is not None
        wide = reference[k] if reference and len(reference) == len(tensors) else None
        if wide is not None and (wide.shape != a.shape or wide.layout is not torch.strided):
            wide = None
        floor = _noise_floor(call, k, wide)
        is_gradient = k >= _output_count(got)
        difference = _value_difference(a, b, wide, floor, gradient=is_gradient)
        if k < len(again) and _differs(again[k], b, floor):
            difference = difference or "numbers differ from all that eager draws"
        if difference and not is_random(call, k, a):
            return f"{_tensor_name(got, k)}: {difference}"
    return None


def _tensor_name(outcome: Outcome, k: int) -> str:
    outputs = _output_count(outcome)
    if k < outputs:
        return f"result {k}"
    k -= outputs
    gradients = len(outcome.gradients)
    return f"gradient {k}" if k < gradients else f"argument {k - gradients} after the call"


def _output_count(outcome: Outcome) -> int:
    return sum(isinstance(t, torch.Tensor) for t in outcome.outputs)


def _run_wider(call: Call, jitter: int | None = None) -> list[torch.Tensor | None] | None:
    """Return the tensors of the call in float64; None if it cannot be run so.

    `jitter` is a seed: each operand gets a relative error of up to half an epsilon.
    """
    generator = None if jitter is None else torch.Generator().manual_seed(jitter)

    def widen(x: object) -> object:
        if isinstance(x, torch.Tensor) and x.dtype in WIDER and x.layout is torch.strided:
            wide = x.detach().to(WIDER[x.dtype])
            if generator is not None:
                moved = torch.rand(x.shape, generator=generator, dtype=torch.float64) - 0.5
                wide *= 1 + torch.finfo(x.dtype).eps * moved
            return wide.requires_grad_(x.requires_grad)
        return WIDER.get(x, x) if isinstance(x, torch.dtype) else x

    args, kwargs = tree_map(widen, (call.args, dict(call.kwargs)))
    fn = call.fn
    if isinstance(fn, torch.nn.Module):
        fn = copy.deepcopy(fn).double()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of functions of integers
    try:
        outcome = run_eager(Call(fn, args, kwargs, call.process))
    finally:
        torch.set_default_dtype(default)
    return None if outcome.error else tensors_of(outcome)


def _noise_floor(call: Call, k: int, wide: torch.Tensor | None) -> torch.Tensor:
    """Return an error that is none: a rounding squared, as in the variance of equal numbers.

    In a sum it is what a relative error of half an epsilon in each operand changes.
    """
    if wide is None:  # float64, without a referee
        return torch.tensor(torch.finfo(torch.float64).eps)
    floats = [t.detach() for t in call.tensors if t.is_floating_point() and t.numel()]
    largest = max((float(t.double().abs().max()) for t in floats), default=1.0)
    noise = (torch.finfo(torch.float32).eps * largest) ** 2
    floor = torch.full(wide.shape, noise, dtype=torch.float64)
    inexact = wide.is_floating_point() or wide.is_complex()
    if inexact and wide.numel() < max((t.numel() for t in floats), default=0):  # perhaps a sum
        for jitter in range(JITTERS):
            moved = _run_wider(call, jitter)
            if moved is not None and (found := moved[k]) is not None and found.shape == wide.shape:
                floor = torch.maximum(floor, (found - wide).abs().nan_to_num(0.0, 0.0))
    return floor


def _differs(a: torch.Tensor | None, b: torch.Tensor, floor: torch.Tensor) -> bool:
    """Whether a run of eager with another seed gives another result than roundings explain."""
    if a is None or a.shape != b.shape:
        return True
    return _value_difference(a, b, None, floor, gradient=False) is not None


def _value_difference(
    a: torch.Tensor,
    b: torch.Tensor,
    wide: torch.Tensor | None,
    floor: torch.Tensor,
    *,
    gradient: bool,
) -> str | None:
    """Return how `a` differs from eager's `b`, unless the wide result says that it may."""
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if wide is not None and wide.dtype == a.dtype and a.dtype.is_floating_point | a.is_complex():
        wide = None  # eager's result once more
    if not a.is_floating_point() and not a.is_complex():
        wrong = a != b if wide is None else (a != b) & (a != wide)
        return _describe(wrong, a, b)
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.is_complex():
        a, b, floor = torch.view_as_real(a), torch.view_as_real(b), floor.unsqueeze(-1)
        wide = None if wide is None else torch.view_as_real(wide.resolve_conj())
    return _describe(_wrong_floats(a, b, wide, floor, gradient=gradient), a, b)


def _wrong_floats(
    a: torch.Tensor,
    b: torch.Tensor,
    wide: torch.Tensor | None,
    floor: torch.Tensor,
    *,
    gradient: bool,
) -> torch.Tensor:
    """Return where `a` is off by more than its few units beside eager's own error.

    The units of a gradient are those of its tensor's largest number: sums of products cancel, as
    in a softmax's. Those of a result are its own.
    """
    eps = torch.finfo(a.dtype).eps
    x, y = a.double(), b.double()
    same = (x == y) | (x.isnan() & y.isnan())
    if wide is None:  # eager's own error is unknown: allow it to be that of a long sum
        largest = y[y.isfinite()].abs().max() if y.isfinite().any() else torch.tensor(0.0)
        return ~same & ~((x - y).abs() <= 64 * eps * torch.maximum(y.abs(), largest) + floor)
    rounded = wide.double().to(a.dtype).double()
    same |= (x == rounded) | (x.isnan() & rounded.isnan())
    exact = wide.double()
    error = (y - exact).abs()
    error = error[error.isfinite()]
    worst = float(error.max()) if error.numel() else 0.0
    scale = float(y[y.isfinite()].abs().max()) if y.isfinite().any() else 0.0
    factor = ILL_FACTOR if worst > ILL_CONDITIONED * eps * scale else FACTOR
    unit = exact.abs().clamp_min(scale) if gradient else exact.abs()
    allowed = factor * worst + ULPS * eps * unit
    return ~same & ~((x - exact).abs() <= allowed + torch.finfo(a.dtype).tiny + floor)


def _describe(wrong: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> str | None:
    count = int(wrong.sum())
    if not count:
        return None
    first = wrong.nonzero()[0].tolist()
    return (
        f"{count} of {wrong.numel()} numbers differ: {a[tuple(first)].item()!r} for "
        f"{b[tuple(first)].item()!r} at {first}"
    )
