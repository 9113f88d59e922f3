"""The rules of complex operators in terms of real and imaginary parts.

The formulas are those of ATen's vectorized kernels, so that infinities and zeros are the same. The
imaginary part of a real operand is a zero that takes part in the arithmetic.
"""

from __future__ import annotations

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
    return lambda e, *operands: rule(e, *map(e.pair, operands))


def _partwise(combine: Callable[[PairBuilder, Part, Part], Part]) -> PairRule:
    """Return the rule of a sum or difference."""

    def rule(e: PairBuilder, a: Argument, b: Argument, *, alpha: Argument = 1) -> Pair:
        x, y = e.pair(a), e.pair(b)
        y = y if alpha == 1 else _complex_product(e, e.pair(alpha), y)
        return Pair(combine(e, x.re, y.re), combine(e, x.im, y.im))

    return rule


def _complex_product(e: PairBuilder, x: Pair, y: Pair) -> Pair:
    re = e.sub(e.mul(x.re, y.re), e.mul(x.im, y.im))
    return Pair(re, e.add(e.mul(x.re, y.im), e.mul(x.im, y.re)))


def _complex_quotient(e: PairBuilder, x: Pair, y: Pair) -> Pair:
    """Return x / y, scaled by the divisor's greater part so that squares do not overflow."""
    if y.im == 0.0:  # an infinite part of the quotient makes the other part nan
        re, im = e.div(x.re, y.re), e.div(x.im, y.re)
        return Pair(e.add(re, e.mul(im, 0.0)), e.add(im, e.mul(re, 0.0)))
    if not isinstance(y.re, Node) and not isinstance(y.im, Node):
        inverse = 1 / complex(y.re, y.im)
        return _complex_product(e, x, Pair(inverse.real, inverse.imag))
    scale = e.maximum(e.abs(y.re), e.abs(y.im))
    a, b, c, d = (e.div(p, scale) for p in (*x, *y))
    norm = e.add(e.mul(c, c), e.mul(d, d))
    re = e.add(e.mul(a, c), e.mul(b, d))
    return Pair(e.div(re, norm), e.div(e.sub(e.mul(b, c), e.mul(a, d)), norm))


def _reciprocal(e: PairBuilder, x: Pair) -> Pair:
    return _complex_quotient(e, Pair(1.0, 0.0), x)


def _neg(e: PairBuilder, x: Pair) -> Pair:
    return Pair(e.neg(x.re), e.neg(x.im))


def _conj(e: PairBuilder, x: Pair) -> Pair:
    return Pair(x.re, e.neg(x.im))


def _exp(e: PairBuilder, x: Pair) -> Pair:
    radius, angle = e.call(aten.exp.default, x.re), e.tensor(x.im, x.re)
    return _polar(e, radius, angle)


def _log(e: PairBuilder, x: Pair) -> Pair:
    return Pair(e.call(aten.log.default, _abs(e, x)), _angle(e, x))


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


def _pad(e: PairBuilder, a: Argument, padding: Argument, value: Argument = 0) -> Pair:
    parts = zip(e.pair(a), e.pair(value), strict=True)
    return Pair(*[e.call(aten.constant_pad_nd.default, p, padding, v) for p, v in parts])


def _where(e: PairBuilder, condition: Argument, a: Argument, b: Argument) -> Pair:
    parts: list[Part] = []
    for x, y in zip(e.pair(a), e.pair(b), strict=True):
        if isinstance(x, Node) or isinstance(y, Node):
            x, y = e.tensor(x, y), e.tensor(y, x)
            parts.append(e.call(aten.where.self, condition, x, y))
        else:  # two zeros
            parts.append(x)
    return Pair(*parts)


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
        results = []
        for x, y in zip(a, b, strict=True):
            first, second = (x, y) if isinstance(x, Node) else (y, x)
            results.append(e.call(target, first, e.tensor(second, first)))
        return e.call(combine, *results)

    return _on_pairs(rule)


PAIR_RULES: dict[str, PairRule] = {
    "_conj": _on_pairs(_conj),
    "_conj_physical": _on_pairs(_conj),
    "_to_copy": _to_copy,
    "add": _partwise(PairBuilder.add),
    "complex": _on_pairs(_complex),
    "constant_pad_nd": _pad,
    "div": _on_pairs(_complex_quotient),
    "exp": _on_pairs(_exp),
    "full": _creation_rule(aten.full.default),
    "log": _on_pairs(_log),
    "mul": _on_pairs(_complex_product),
    "neg": _on_pairs(_neg),
    "ones": _creation_rule(aten.full.default, 1.0),
    "polar": _polar,
    "pow": _pow,
    "reciprocal": _on_pairs(_reciprocal),
    "scalar_tensor": _creation_rule(aten.scalar_tensor.default),
    "sub": _partwise(PairBuilder.sub),
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
    "cat clone copy flip gather index_select mean repeat select_backward select_scatter "
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
    if name == "pow":
        exponent = node.args[1]
        return isinstance(exponent, (int, float)) and exponent in (1, 2, 3)
    return name in PAIR_RULES or name in PARTWISE_OPS or name in VIEW_OPS
