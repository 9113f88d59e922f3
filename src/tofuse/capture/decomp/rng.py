"""Decompositions of random ops to pure functions of one seed, which the backward can recompute.

`tofuse::seed` is the only impure op: two 64-bit words from torch's default generator of a device,
so they are reproducible under `torch.manual_seed`. GPU kernels get them by value or, while a CUDA
graph is captured, from GPU memory. `tofuse::uniform` and `tofuse::bernoulli` are pure; see
`tofuse.ops.philox`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Union

import torch
from torch import Tensor

from tofuse.capture.decomp.decompose_checks import check_all
from tofuse.capture.fx.devices import is_supported, on_host
from tofuse.cost.thresholds import PROBABILITY_ERROR
from tofuse.ops.philox import HALF_WORDS
from tofuse.ops.philox import bernoulli as philox_bernoulli
from tofuse.ops.philox import uniform as philox_uniform
from tofuse.ops.reference import draw_seed
from tofuse.torch_internals.operators import OpOverload

_LIBRARY = torch.library.Library("tofuse", "DEF")
_LIBRARY.define("seed(Device? device=None) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_LIBRARY.define("uniform(Tensor seed, SymInt[] size, int stream, Device? device=None) -> Tensor")
_LIBRARY.define(
    "bernoulli(Tensor seed, SymInt[] size, int stream, int below, Device? device=None) -> Tensor"
)


Device = Union[torch.device, None]  # noqa: UP007  (evaluated at run time)


def _draw_uniform(seed: Tensor, size: Sequence[int], stream: int, device: Device = None) -> Tensor:
    first, second = seed.tolist()
    drawn = torch.from_numpy(philox_uniform((first, second), tuple(size), stream))
    return drawn if device is None else drawn.to(device)


def _draw_bernoulli(
    seed: Tensor, size: Sequence[int], stream: int, below: int, device: Device = None
) -> Tensor:
    first, second = seed.tolist()
    drawn = torch.from_numpy(philox_bernoulli((first, second), tuple(size), stream, below))
    return drawn if device is None else drawn.to(device)


def _fake_seed(device: Device = None) -> Tensor:
    return torch.empty(2, dtype=torch.int64)


def _fake_uniform(seed: Tensor, size: Sequence[int], stream: int, device: Device = None) -> Tensor:
    return torch.empty(size, dtype=torch.float32, device=device or seed.device)


def _fake_bernoulli(
    seed: Tensor, size: Sequence[int], stream: int, below: int, device: Device = None
) -> Tensor:
    return torch.empty(size, dtype=torch.bool, device=device or seed.device)


_LIBRARY.impl("seed", draw_seed, "CompositeExplicitAutograd")
_LIBRARY.impl("uniform", _draw_uniform, "CompositeExplicitAutograd")
_LIBRARY.impl("bernoulli", _draw_bernoulli, "CompositeExplicitAutograd")
torch.library.register_fake("tofuse::seed", _fake_seed, lib=_LIBRARY)
torch.library.register_fake("tofuse::uniform", _fake_uniform, lib=_LIBRARY)
torch.library.register_fake("tofuse::bernoulli", _fake_bernoulli, lib=_LIBRARY)

SEED = torch.ops.tofuse.seed.default
UNIFORM = torch.ops.tofuse.uniform.default
BERNOULLI = torch.ops.tofuse.bernoulli.default
aten = torch.ops.aten


class TensorSpec(NamedTuple):
    """The shape, device (None for the CPU) and dtype of a new tensor."""

    shape: Sequence[int]
    device: Device = None
    dtype: torch.dtype = torch.float32


def _spec(
    size_or_like: Sequence[int] | Tensor, dtype: torch.dtype | None = None, device: Device = None
) -> TensorSpec:
    """Return what a factory creates; a tensor gives the size and the defaults."""
    if isinstance(size_or_like, Tensor):
        like = size_or_like
        return TensorSpec(like.shape, device or like.device, dtype or like.dtype)
    return TensorSpec(size_or_like, device, dtype or torch.get_default_dtype())


def _seed(device: Device) -> Tensor:
    """Draw a seed from the generator of the device."""
    if device is None or torch.device(device).type != "cuda":
        return SEED()
    return SEED(torch.device(device))


def _uniform_f32(spec: TensorSpec) -> Tensor:
    return UNIFORM(_seed(spec.device), list(spec.shape), 0, spec.device)


def _true_with_probability(spec: TensorSpec, probability: float) -> Tensor:
    """Draw booleans with a probability: by 16 random bits each, if they express it, else by 24."""
    if isinstance(probability, float):  # a constant: a SymFloat varies from call to call
        below = round(probability * HALF_WORDS)
        error = abs(below - probability * HALF_WORDS)
        nearest = min(below, HALF_WORDS - below)
        if nearest > 0 and error <= PROBABILITY_ERROR * nearest:
            return BERNOULLI(_seed(spec.device), list(spec.shape), 0, below, spec.device)
    return _uniform_f32(spec) < probability


def _uniform_below_one(spec: TensorSpec) -> Tensor:
    """Draw uniforms in [0, 1) that stay below 1 when rounded to the dtype of the result."""
    limit = LARGEST_BELOW_ONE.get(spec.dtype)
    drawn = _uniform_f32(spec)
    return drawn if limit is None else torch.clamp(drawn, max=limit)


LARGEST_BELOW_ONE = {torch.float16: 1 - 2.0**-11, torch.bfloat16: 1 - 2.0**-8}


def _uniform_f64(spec: TensorSpec) -> Tensor:
    """Draw uniforms in [0, 1) as float64 with 48 random bits, from two streams."""
    low, high = _uniform_f32(spec), _uniform_f32(spec)
    return high.to(torch.float64) + low.to(torch.float64) * 2.0**-24


def _standard_normal(spec: TensorSpec) -> Tensor:
    """Draw by Box and Muller (1958). 1 - uniform is in (0, 1], so its logarithm is finite."""
    radius = torch.sqrt(-2.0 * torch.log(1.0 - _uniform_f32(spec)))
    return radius * torch.cos((2.0 * math.pi) * _uniform_f32(spec))


def _is_supported(generator: torch.Generator | None, device: torch.device | str | None) -> bool:
    return generator is None and (device is None or is_supported(torch.device(device)))


def _sampler(draw: Callable[..., Tensor], allowed: Callable[..., bool]) -> Callable[..., Tensor]:
    """Return a decomposition `f(self, *parameters)`: draw in float32, convert to self's dtype."""

    def sample(
        like: Tensor, *parameters: float, generator: torch.Generator | None = None
    ) -> Tensor:
        if not _is_supported(generator, like.device) or not like.dtype.is_floating_point:
            return NotImplemented
        if not allowed(*parameters):
            return NotImplemented  # eager raises the error
        return draw(_spec(like), *parameters).to(like.dtype)

    return sample


def _factory(draw: Callable[[TensorSpec], Tensor]) -> Callable[..., Tensor]:
    """Return the decomposition of a factory such as `rand(size)` or `rand_like(x)`."""

    def create(
        size_or_like: Sequence[int] | Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        **layout: object,
    ) -> Tensor:
        spec = _spec(size_or_like, dtype, device)
        if not _is_supported(None, spec.device) or pin_memory or not spec.dtype.is_floating_point:
            return NotImplemented
        return draw(spec).to(spec.dtype)

    return create


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if not _is_supported(None, x.device) or not x.dtype.is_floating_point:
        return NotImplemented
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:  # as eager, which multiplies by zero: infinities become nan
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    keep = _true_with_probability(_spec(x), 1.0 - p)
    return scaled(x, keep, 1.0 / (1.0 - p)), keep


def scaled(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Multiply by the scale where the mask is set, else by zero.

    Eager rounds the scale to half precision first on the CPU, and only the product on a GPU. Here
    the scaled mask is a value like any other: it is rounded if values in registers are.
    """
    if on_host(x) and x.dtype.itemsize == 2:
        return x * (mask.to(x.dtype) * scale)
    factor = torch.where(mask, scale, 0.0)
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * factor.to(wide)).to(x.dtype)


def _bernoulli(
    x: Tensor, p: float | Tensor | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw 1 with probability `p`, or with those in `x`."""
    p = x if p is None else p
    if not _is_supported(generator, x.device):
        return NotImplemented
    if isinstance(p, Tensor):
        check_all((p >= 0) & (p <= 1), "Expected p_in >= 0 && p_in <= 1 to be true")
        return (_uniform_f32(_spec(x)) < p).to(x.dtype)
    return _true_with_probability(_spec(x), p).to(x.dtype) if 0 <= p <= 1 else NotImplemented


def _integers(low: int | None, high: int | None, spec: TensorSpec) -> Tensor:
    """Draw integers in [low, high); NotImplemented if 48 random bits would be biased."""
    if not isinstance(low, int) or not isinstance(high, int) or not 0 < high - low < 2**31:
        return NotImplemented
    unit = _uniform_f32(spec) if high - low <= 4096 else _uniform_f64(spec)
    return (torch.floor(unit * (high - low)).to(torch.int64) + low).to(spec.dtype)


def _randint(
    *arguments: int | Sequence[int] | Tensor,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    **layout: object,
) -> Tensor:
    """Decompose `randint` with arguments ([low,] high, size) or `randint_like` (x, [low,] high)."""
    *bounds, high = (a for a in arguments if not isinstance(a, (Sequence, Tensor)))
    (size_or_like,) = (a for a in arguments if isinstance(a, (Sequence, Tensor)))
    if dtype is None and not isinstance(size_or_like, Tensor):
        dtype = torch.int64
    spec = _spec(size_or_like, dtype, device)
    if not _is_supported(None, spec.device) or pin_memory:
        return NotImplemented
    return _integers(bounds[0] if bounds else 0, high, spec)


def _random(like: Tensor, *bounds: int | None, generator: torch.Generator | None = None) -> Tensor:
    """Decompose `random` from [low,] high."""
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    if not _is_supported(generator, like.device) or like.dtype is torch.bool:
        return NotImplemented
    return _integers(low, high, _spec(like))


def _normal_from_tensors(
    mean: Tensor | float, std: Tensor | float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """Decompose `normal` with a tensor as mean, as standard deviation or as both."""
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    if not _is_supported(generator, tensors[0].device):
        return NotImplemented
    if isinstance(std, Tensor):
        check_all(std >= 0, "normal expects all elements of std >= 0.0")
    elif not std >= 0:
        return NotImplemented
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    result = _standard_normal(TensorSpec(shape, tensors[0].device)) * std + mean
    return result.to(mean.dtype if isinstance(mean, Tensor) else tensors[0].dtype)


def _uniform(spec: TensorSpec, low: float = 0.0, high: float = 1.0) -> Tensor:
    return _uniform_below_one(spec) * (high - low) + low


def _normal(spec: TensorSpec, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return _standard_normal(spec) * std + mean


def _log_normal(spec: TensorSpec, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return torch.exp(_normal(spec, mean, std))


def _exponential(spec: TensorSpec, rate: float = 1.0) -> Tensor:
    # The draw 0 becomes half a step, because an exponential is never zero.
    return -torch.log1p(-torch.clamp(_uniform_f32(spec), min=2.0**-25)) / rate


def _cauchy(spec: TensorSpec, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return median + sigma * torch.tan(math.pi * (_uniform_f32(spec) - 0.5))


def _geometric(spec: TensorSpec, p: float) -> Tensor:
    trials = torch.ceil(torch.log(1.0 - _uniform_f32(spec)) / math.log1p(-p))
    return torch.clamp(trials, min=1.0)


RANDOM_DECOMPOSITIONS: dict[OpOverload, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    aten.native_dropout.default: _native_dropout,
    aten.native_dropout_backward.default: scaled,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.rand.default: _factory(_uniform_below_one),
    aten.randn.default: _factory(_standard_normal),
    aten.rand_like.default: _factory(_uniform_below_one),
    aten.randn_like.default: _factory(_standard_normal),
    aten.randint.default: _randint,
    aten.randint.low: _randint,
    aten.randint_like.default: _randint,
    aten.randint_like.low_dtype: _randint,
    getattr(aten.random, "from"): _random,
    aten.random.to: _random,
    aten.uniform.default: _sampler(_uniform, lambda low=0.0, high=1.0: low <= high),
    aten.normal_functional.default: _sampler(_normal, lambda mean=0.0, std=1.0: std >= 0),
    aten.normal.Tensor_float: _normal_from_tensors,
    aten.normal.float_Tensor: _normal_from_tensors,
    aten.normal.Tensor_Tensor: _normal_from_tensors,
    aten.exponential.default: _sampler(_exponential, lambda rate=1.0: rate > 0),
    aten.log_normal.default: _sampler(_log_normal, lambda mean=1.0, std=2.0: std > 0),
    aten.cauchy.default: _sampler(_cauchy, lambda median=0.0, sigma=1.0: sigma > 0),
    aten.geometric.default: _sampler(_geometric, lambda p: 0 < p < 1),
}
