"""Static and symbolic sizes: integer polynomials over named symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Union

MIN_SIZE_HINT = 2  # as most symbols are at least 2; keeps the order of strides in their hints


class Symbol(str):
    """The name of a size, with its value at the first call as a hint, if known.

    Symbols of the same name are equal, whatever their hints: a hint only chooses between programs
    that are correct for every size.
    """

    size_hint: int | None = None


Monomial = tuple[Symbol, ...]


@dataclass(frozen=True)
class SymDim:
    """A sum of products of symbols, such as `2*s0*s1 + 3`.

    A symbol for a size is at least 2; one for an expression of others (`s0 // 4`) may be 0.
    `terms` is sorted and has no zero coefficient, so equal polynomials compare equal.
    """

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _normal(_terms(self) + _terms(other))

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Dim:
        return _normal(
            [(tuple(sorted(a + b)), x * y) for a, x in _terms(self) for b, y in _terms(other)]
        )

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + (-1 * other if isinstance(other, SymDim) else -other)

    def __rsub__(self, other: Dim) -> Dim:
        return (-self) + other

    def __repr__(self) -> str:
        """Return the text of the polynomial, which `parse_dim` accepts."""
        parts = []
        for monomial, c in self.terms:
            factors = ([] if c == 1 and monomial else [str(c)]) + list(monomial)
            parts.append("*".join(factors))
        return "+".join(parts)


Dim = Union[int, SymDim]  # noqa: UP007  (an alias evaluated at run time on Python 3.10)


def symbol(name: str, hint: int | None = None) -> SymDim:
    """Return the dimension of one symbol. Without `hint`, a `Symbol` keeps its own."""
    result = name if isinstance(name, Symbol) else Symbol(name)
    if hint is not None:
        result = Symbol(name)
        result.size_hint = max(MIN_SIZE_HINT, hint)
    return SymDim((((result,), 1),))


def exact_div(a: Dim, b: Dim) -> Dim | None:
    """Return `a / b` if it is exact for every value of the symbols, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == b:
        return 1
    divisor = _terms(b)
    if not divisor:
        return None
    (symbols, coefficient), quotient, rest = max(divisor, key=_term_order), [], a
    while rest != 0:  # long division: each step removes the leading term
        monomial, c = max(_terms(rest), key=_term_order)
        others = list(monomial)
        for s in symbols:
            if s not in others:
                return None
            others.remove(s)
        if c % coefficient:
            return None
        quotient.append((tuple(others), c // coefficient))
        rest = rest - _normal(quotient[-1:]) * b
    return _normal(quotient)


def _term_order(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    """Return a key by which a product's leading term is the product of the leading terms."""
    return len(term[0]), term[0]


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of `dims`; 1 if there are none."""
    total: Dim = 1
    for d in dims:
        total = d * total if isinstance(d, SymDim) else total * d
    return total


def evaluate(dim: Dim, env: Mapping[str, int]) -> int:
    """Return the value of `dim` under a binding of its symbols."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, c in dim.terms:
        for s in monomial:
            c *= env[s]
        total += c
    return total


def substitute_dim(dim: Dim, name: str, by: Dim) -> Dim:
    """Return `dim` with the symbol `name` replaced by `by`."""
    if name not in symbols_of(dim):
        return dim
    total: Dim = 0
    for monomial, c in _terms(dim):
        total = product([c, *(by if s == name else symbol(s) for s in monomial)]) + total
    return total


def size_hint(dim: Dim, default: int = 64) -> int:
    """Return an estimate of a size for heuristics; `default` replaces a symbol without a hint.

    Correctness must not depend on it; see `static_or`.
    """
    if isinstance(dim, int):
        return dim
    hints: dict[str, int] = {
        s: default if s.size_hint is None else s.size_hint for s in symbols_of(dim)
    }
    return evaluate(dim, hints)


def static_or(dim: Dim, otherwise: int) -> int:
    """Return a static size, or `otherwise` for a symbolic one."""
    return dim if isinstance(dim, int) else otherwise


def symbols_of(dim: Dim) -> tuple[Symbol, ...]:
    """Return the symbols in `dim`, sorted."""
    if isinstance(dim, int):
        return ()
    return tuple(sorted({s for monomial, _ in dim.terms for s in monomial}))


def known_multiple(dim: Dim, factor: int) -> bool:
    """Whether `dim` is a multiple of `factor` for every value of the symbols."""
    return all(c % factor == 0 for _, c in _terms(dim))


def known_positive(dim: Dim) -> bool:
    """Whether `dim` is positive even if every symbol is 0."""
    terms = _terms(dim)
    return any(not monomial for monomial, _ in terms) and all(c > 0 for _, c in terms)


def show_dims(dims: Iterable[Dim]) -> str:
    """Return `4,s0`."""
    return ",".join(map(str, dims))


def show_strides(strides: tuple[Dim, ...] | None) -> str:
    """Return `{4,1}`, or nothing if the strides are not known."""
    return "" if strides is None else f"{{{show_dims(strides)}}}"


def show_symbols(names: Iterable[str], dims: Iterable[Dim]) -> str:
    """Return `s0=300 s1`: names of sizes, with the size hints of the symbols in `dims`."""
    symbols = (s for dim in dims for s in symbols_of(dim) if s.size_hint is not None)
    hints = {str(s): f"={s.size_hint}" for s in symbols}
    return " ".join(f"{name}{hints.get(name, '')}" for name in names)


def parse_dim(text: str, symbols: Mapping[str, Symbol] = MappingProxyType({})) -> Dim:
    """Parse the text of a dimension; `symbols` have the hints of some symbols."""
    total: Dim = 0
    for term in text.split("+"):
        factors: list[Dim] = []
        for f in term.split("*"):
            f = f.strip()
            factors.append(int(f) if f.lstrip("-").isdigit() else symbol(symbols.get(f, f)))
        total = product(factors) + total
    return total


def contiguous_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return row-major strides in elements, as torch defines them (an extent of 0 counts as 1)."""
    return strides_in(range(len(shape)), shape)


def strides_in(order: Sequence[int], shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return dense strides for dimensions in the given order, outermost first."""
    strides: list[Dim] = [0] * len(shape)
    step: Dim = 1
    for k in reversed(order):
        strides[k] = step
        step = product((step, 1 if shape[k] == 0 else shape[k]))
    return tuple(strides)


def stride_order(strides: Sequence[Dim]) -> tuple[int, ...]:
    """Return the dimensions by decreasing stride."""
    return tuple(sorted(range(len(strides)), key=lambda k: -size_hint(strides[k])))


def equal_strides(a: Iterable[Dim], b: Iterable[Dim], shape: Iterable[Dim]) -> bool:
    """Whether strides address the same elements: those of an extent of 1 do not matter."""
    return all(x == y or n == 1 for x, y, n in zip(a, b, shape, strict=True))


def _terms(dim: Dim) -> list[tuple[Monomial, int]]:
    if isinstance(dim, SymDim):
        return list(dim.terms)
    return [((), dim)] if dim else []


def _normal(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, c in terms:
        total[monomial] = total.get(monomial, 0) + c
    kept = tuple(sorted((m, c) for m, c in total.items() if c))
    if not kept:
        return 0
    if kept[-1][0] == () and len(kept) == 1:
        return kept[0][1]
    return SymDim(kept)
