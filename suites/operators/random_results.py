"""Whether a result is one that eager could have drawn with another seed."""

import torch

from suites.operators.calls import Call
from suites.operators.program import run_eager, tensors_of

ULPS = 4  # units in the last place that a result may be off beside eager's own error
SEEDS = 8  # runs of eager that show whether a result is random
# Ranges in interquartile ranges: 5 for normal draws, 7 for exponential, 25 and more for Cauchy.
HEAVY, HEAVY_MARGIN = 10, 100
MOST_DRAWS = 1 << 20  # of which quartiles are taken: torch.quantile has a limit


def is_close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two results are equal but for a few units in the last place."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if not a.is_floating_point() and not a.is_complex():
        return bool(torch.equal(a, b))
    tiny = torch.finfo(a.dtype)
    return bool(torch.allclose(a, b, rtol=ULPS * tiny.eps, atol=tiny.tiny, equal_nan=True))


def is_random(call: Call, k: int, got: torch.Tensor) -> bool:
    """Whether eager's own result varies by seed, and `got` is one of its possible values.

    A result that has at most a value and zero at each place, as after a dropout, must have one of
    them, and as many zeros as eager. Others lie in the range of eager's, widened to both sides.
    """
    if _is_uninitialized(call, k):
        return True
    runs = [tensors_of(run_eager(call, seed)) for seed in range(SEEDS)]
    draws = [run[k] for run in runs]
    first = draws[0]
    if first is None or all(is_close(d, first) for d in draws[1:]):
        return False
    known = [d for d in draws if d is not None and d.shape == got.shape]
    if len(known) < SEEDS or got.numel() == 0:
        return True
    stack = torch.stack(known).to(torch.complex128 if got.is_complex() else torch.float64)
    value = got.to(stack.dtype)
    if not bool((value.isfinite() | ~stack.isfinite().all(0)).all()):
        return False
    other = _value_beside_zero(stack)
    if bool(((stack == 0) | (stack == other)).all()):
        ulp = torch.finfo(got.dtype).eps if got.is_floating_point() or got.is_complex() else 0.0
        most = stack.abs().amax()
        near = (other - value).abs() <= 1e-2 * other.abs() + ULPS * ulp * most
        unseen = (other == 0) & (value.abs() <= most)  # all draws were zero
        return bool((near | unseen | (value == 0)).all()) and _as_many_zeros(value, stack)
    parts = (value.real, value.imag) if value.is_complex() else (value,)
    drawn = (stack.real, stack.imag) if stack.is_complex() else (stack,)
    return all(_in_range(v, d) for v, d in zip(parts, drawn, strict=True))


def _is_uninitialized(call: Call, k: int) -> bool:
    """Whether eager leaves the memory of a result unwritten: filled on request, and only then."""
    if _is_filled(tensors_of(run_eager(call))[k]):
        return False
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return _is_filled(tensors_of(run_eager(call))[k])
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


def _is_filled(t: torch.Tensor | None) -> bool:
    """Whether a tensor holds only the value with which torch fills unwritten memory."""
    if t is None or t.numel() == 0:
        return False
    if t.is_floating_point() or t.is_complex():
        return bool(t.isnan().all())
    return bool((t == (t.dtype == torch.bool or torch.iinfo(t.dtype).max)).all())


def _as_many_zeros(value: torch.Tensor, draws: torch.Tensor) -> bool:
    """Whether the share of zeros is as in the draws, to four standard deviations."""
    shares = (draws == 0).double().reshape(len(draws), -1).mean(1)
    mean = shares.mean()
    deviation = torch.maximum(shares.std(), (mean * (1 - mean) / value.numel()).sqrt())
    return bool(((value == 0).double().mean() - mean).abs() <= 4 * deviation)


def _in_range(value: torch.Tensor, draws: torch.Tensor) -> bool:
    """Whether finite values lie in the range of the draws, or beside it by as much.

    A range is much wider than its middle half if single draws are far outside: then by more.
    """
    finite = draws[draws.isfinite()]
    if not finite.numel():
        return True
    low, high = finite.min(), finite.max()
    quarters = torch.tensor((0.25, 0.75), dtype=finite.dtype)
    below, above = torch.quantile(finite[:MOST_DRAWS], quarters)
    margin = (high - low) * (1 if high - low <= HEAVY * (above - below) else HEAVY_MARGIN)
    value = value[value.isfinite()]
    return bool(((value >= low - margin) & (value <= high + margin)).all())


def _value_beside_zero(stack: torch.Tensor) -> torch.Tensor:
    """Return at each place the first value that is not zero, if there is one."""
    first = (stack != 0).to(torch.int8).argmax(0, keepdim=True)
    return stack.gather(0, first)[0]
