"""The rules of complex operators in terms of real and imaginary parts.

The formulas are ATen's, so that infinities, zeros and nan are the same. The imaginary part of a
real operand is a zero that takes part in the arithmetic.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TypeVar

import torch
from torch.fx import Node
from torch.fx.node import Argument, Target

from tofuse.capture.joint.complex.pair_builder import (
    Pair,
    PairBuilder,
    Part,
    operator_name,
    real_dtype_of,
)

aten = torch.ops.aten
PairRule = Callable[..., Pair]
RealRule = Callable[..., Part]
R = TypeVar("R")


def _on_pairs(rule: Callable[..., R]) -> Callable[..., R]:
    """Return the rule on operands that computes `rule` on their pairs."""
    return lambda e, *operands: rule(e, *e.promoted_pairs(*operands))


def _sum_with_alpha(sign: int) -> PairRule:
    """Return the rule of a sum or difference; ATen multiplies by alpha even if it is 1."""

    def rule(e: PairBuilder, a: Argument, b: Argument, *, alpha: complex = 1) -> Pair:
        x, y = e.promoted_pairs(a, b)
        y = _complex_product(e, y, e.pair(alpha if sign > 0 else -alpha))
        return Pair(e.add(x.re, y.re), e.add(x.im, y.im))

    return rule


def _complex_product(e: PairBuilder, x: Pair, y: Pair) -> Pair:
    re = e.sub(e.mul(x.re, y.re), e.mul(x.im, y.im))
    return Pair(re, e.add(e.mul(x.re, y.im), e.mul(x.im, y.re)))


def _complex_quotient(e: PairBuilder, x: Pair, y: Pair) -> Pair:
    """Return x / y by Smith's method, as c10::complex; a divisor of zero divides both parts."""
    re_larger = y.im == 0.0 or e.compare(operator.ge, e.abs(y.re), e.abs(y.im))
    large, small = e.where(re_larger, y.re, y.im), e.where(re_larger, y.im, y.re)
    a, b = e.where(re_larger, x.re, x.im), e.where(re_larger, x.im, x.re)
    ratio = e.div(small, large)
    scale = e.div(1.0, e.add(large, e.mul(small, ratio)))
    re = e.mul(e.add(a, e.mul(b, ratio)), scale)
    im = e.sub(b, e.mul(a, ratio))
    im = e.mul(e.where(re_larger, im, e.sub(e.mul(a, ratio), b)), scale)
    is_zero = e.compare(operator.eq, e.add(e.abs(y.re), e.abs(y.im)), 0.0)
    infinite = Pair(e.mul(x.re, math.inf), e.mul(x.im, math.inf))
    return Pair(e.where(is_zero, infinite.re, re), e.where(is_zero, infinite.im, im))


def _reciprocal(e: PairBuilder, x: Pair) -> Pair:
    return _complex_quotient(e, Pair(1.0, 0.0), x)


def _neg(e: PairBuilder, x: Pair) -> Pair:
    return Pair(e.neg(x.re), e.neg(x.im))


def _conj(e: PairBuilder, x: Pair) -> Pair:
    return Pair(x.re, e.neg(x.im))


def _sgn(e: PairBuilder, x: Pair) -> Pair:
    radius = _abs(e, x)
    is_zero = e.compare(operator.eq, radius, 0.0)
    return Pair(*[e.where(is_zero, 0.0, e.div(p, radius)) for p in x])


def _exp(e: PairBuilder, x: Pair) -> Pair:
    """Return the exponential as C99 defines it.

    Two factors exp(re / 2) overflow only if the result does. With an infinite real part, an angle
    that is not finite counts as zero; an imaginary part of zero stays as it is.
    """
    finite = e.compare(operator.lt, e.abs(x.im), math.inf)
    zero = e.call(aten.copysign.Tensor, e.tensor(0.0, x.re), e.tensor(x.im, x.re))
    infinite = e.compare(operator.eq, e.abs(x.re), math.inf)
    angle = e.tensor(e.where(infinite, e.where(finite, x.im, zero), x.im), x.re)
    half = e.call(aten.exp.default, e.mul(x.re, 0.5))
    re, im = (e.mul(p, half) for p in _polar(e, half, angle))
    return Pair(re, e.where(e.compare(operator.eq, x.im, 0.0), x.im, im))


def _log(e: PairBuilder, x: Pair) -> Pair:
    """Return the logarithm; the absolute value of a complex64 is exact enough in float64."""
    wide = Pair(*[e.cast(p, torch.float64) for p in x])
    return Pair(e.call(aten.log.default, _abs(e, wide)), _angle(e, x))


def _mean(e: PairBuilder, a: Node, *args: Argument, dtype: Argument = None) -> Pair:
    """Divide by the number of elements, which ATen does by a complex number."""
    real_dtype, value = real_dtype_of(e.origin), a.meta["val"]
    parts = [e.cast(e.node(p, value), real_dtype) for p in e.pair(a)]
    re, im = (e.call(e.origin.target, p, *args) for p in parts)
    return Pair(e.add(re, e.mul(im, 0.0)), e.sub(im, e.mul(re, 0.0)))


def _polar(e: PairBuilder, radius: Argument, angle: Argument) -> Pair:
    cos, sin = e.call(aten.cos.default, angle), e.call(aten.sin.default, angle)
    a = e.pair(radius).re
    return Pair(e.mul(a, cos), e.mul(a, sin))


def _complex(e: PairBuilder, re: Pair, im: Pair) -> Pair:
    return Pair(re.re, im.re)


def _view_as_complex(e: PairBuilder, both: Node) -> Pair:
    return e.unstack_last(both)


def _to_copy(e: PairBuilder, a: Argument, **kwargs: Argument) -> Pair:
    kwargs = {**kwargs, "dtype": real_dtype_of(e.origin)}
    copy = aten._to_copy.default
    return Pair(*[e.call(copy, p, **kwargs) if isinstance(p, Node) else p for p in e.pair(a)])


def _pad(e: PairBuilder, a: Node, padding: Argument, value: Argument = 0) -> Pair:
    wholes = [e.node(p, a.meta["val"]) for p in e.pair(a)]  # parts may be numbers, or broadcast
    parts = zip(wholes, e.pair(value), strict=True)
    return Pair(*[e.call(aten.constant_pad_nd.default, p, padding, v) for p, v in parts])


def _where(e: PairBuilder, condition: Argument, a: Argument, b: Argument) -> Pair:
    parts = zip(*e.promoted_pairs(a, b), strict=True)
    return Pair(*[e.where(condition, x, y) for x, y in parts])


def _creation_rule(target: Target, *fill: float) -> PairRule:
    """Return the rule of an op that creates a tensor from its last argument, or from `fill`."""

    def rule(e: PairBuilder, *args: Argument, **kwargs: Argument) -> Pair:
        args = (*args, *fill)
        kwargs = {**kwargs, "dtype": real_dtype_of(e.origin)}
        return Pair(*[e.call(target, *args[:-1], p, **kwargs) for p in e.pair(args[-1])])

    return rule


def _pow(e: PairBuilder, a: Argument, exponent: float) -> Pair:
    x = e.pair(a)
    power = x
    for _ in range(int(exponent) - 1):
        power = _complex_product(e, power, x)
    return power


def _abs(e: PairBuilder, x: Pair) -> Node:
    return e.call(aten.hypot.default, x.re, e.tensor(x.im, x.re))


def _angle(e: PairBuilder, x: Pair) -> Node:
    return e.call(aten.atan2.default, e.tensor(x.im, x.re), x.re)


def _view_as_real(e: PairBuilder, a: Node) -> Node:
    value = a.meta["val"]
    return e.stack_last(*[e.node(p, value) for p in e.pair(a)])


def _compare_parts(target: Target, combine: Target) -> RealRule:
    """Return the rule of a comparison of both parts, combined by a bitwise op."""

    def rule(e: PairBuilder, a: Pair, b: Pair) -> Part:
        example = next(p for p in (*a, *b) if isinstance(p, Node))
        results = [
            e.call(target, e.tensor(x, example), e.tensor(y, example))
            for x, y in zip(a, b, strict=True)  # both may be numbers
        ]
        return e.call(combine, *results)

    return _on_pairs(rule)


PAIR_RULES: dict[str, PairRule] = {
    "_conj": _on_pairs(_conj),
    "_conj_physical": _on_pairs(_conj),
    "_to_copy": _to_copy,
    "add": _sum_with_alpha(1),
    "complex": _on_pairs(_complex),
    "constant_pad_nd": _pad,
    "div": _on_pairs(_complex_quotient),
    "exp": _on_pairs(_exp),
    "full": _creation_rule(aten.full.default),
    "log": _on_pairs(_log),
    "mean": _mean,
    "mul": _on_pairs(_complex_product),
    "neg": _on_pairs(_neg),
    "ones": _creation_rule(aten.full.default, 1.0),
    "polar": _polar,
    "pow": _pow,
    "reciprocal": _on_pairs(_reciprocal),
    "scalar_tensor": _creation_rule(aten.scalar_tensor.default),
    "sgn": _on_pairs(_sgn),
    "sub": _sum_with_alpha(-1),
    "view_as_complex": _view_as_complex,
    "where": _where,
    "zeros": _creation_rule(aten.full.default, 0.0),
}


REAL_RULES: dict[str, RealRule] = {
    "abs": _on_pairs(_abs),
    "angle": _on_pairs(_angle),
    "eq": _compare_parts(aten.eq.Tensor, aten.bitwise_and.Tensor),
    "ne": _compare_parts(aten.ne.Tensor, aten.bitwise_or.Tensor),
    "view_as_real": _view_as_real,
}

_VIEW_NAMES = (
    "_conj _reshape_alias _unsafe_view alias detach expand getitem permute select slice split "
    "split_with_sizes squeeze t transpose unbind unsqueeze view view_as_complex"
)
_PARTWISE_NAMES = (
    "cat clone copy flip gather index_select repeat select_backward select_scatter "
    "slice_backward slice_scatter sum"
)
_BANDWIDTH_BOUND_NAMES = "_conj _conj_physical _to_copy add clone div full mul neg ones sub zeros"
VIEW_OPS = frozenset(_VIEW_NAMES.split())
PARTWISE_OPS = frozenset(_PARTWISE_NAMES.split())
BANDWIDTH_BOUND_OPS = frozenset(_BANDWIDTH_BOUND_NAMES.split())  # ATen runs these at memory speed
PROMOTING_OPS = frozenset(("cat", "copy", "select_scatter", "slice_scatter"))  # of real operands


def has_rule(node: Node) -> bool:
    """Whether a call with a complex result has a rule."""
    name = operator_name(node)
    if name == "log":  # a sum of squares would overflow
        return real_dtype_of(node) is torch.float32
    if name == "pow":
        exponent = node.args[1]
        return isinstance(exponent, (int, float)) and exponent in (1, 2, 3)
    if node.target is aten.view.dtype:  # it reads the memory of pairs as another type
        return False
    if name in ("complex", "polar"):  # raise for two dtypes, at run time
        return len({i.meta["val"].dtype for i in node.all_input_nodes}) == 1
    return name in PAIR_RULES or name in PARTWISE_OPS or name in VIEW_OPS
