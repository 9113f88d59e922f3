"""Affine functions of the axes of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tofuse.ir.dims import Dim


@dataclass(frozen=True)
class AffineExpr:
    """`const + sum(coefficient * axis)`, with terms sorted by axis and no zero coefficient."""

    terms: tuple[tuple[str, Dim], ...] = ()
    const: Dim = 0

    def __add__(self, other: AffineExpr) -> AffineExpr:
        return make_affine([*self.terms, *other.terms], self.const + other.const)

    def __mul__(self, factor: Dim) -> AffineExpr:
        return make_affine([(a, c * factor) for a, c in self.terms], self.const * factor)

    def coefficient(self, axis: str) -> Dim:
        return next((c for a, c in self.terms if a == axis), 0)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for a, _ in self.terms)

    def __repr__(self) -> str:
        parts = [a if c == 1 else f"({c})*{a}" for a, c in self.terms]
        if self.const != 0 or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


def make_affine(terms: Iterable[tuple[str, Dim]], const: Dim = 0) -> AffineExpr:
    """Return the canonical form of a sum of terms."""
    total: dict[str, Dim] = {}
    for axis, c in terms:
        total[axis] = total.get(axis, 0) + c
    return AffineExpr(tuple(sorted((a, c) for a, c in total.items() if c != 0)), const)
