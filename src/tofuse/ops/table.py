"""The closed set of ops: a name, a pattern and an arity each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Pattern(Enum):
    """How the iteration space of an op relates to those of its operands."""

    ELEMENTWISE = "elementwise"
    BROADCAST = "broadcast"
    VIEW = "view"  # reshape, permute, slice: another index, the same elements
    JOIN = "join"  # cat and pad: which operand is read depends on the index
    TAKE = "take"  # a load whose index is itself a value
    REDUCE = "reduce"
    RANDOM = "random"
    SOURCE = "source"  # full and iota: nothing is read
    OPAQUE = "opaque"  # PyTorch's own operator runs it


@dataclass(frozen=True)
class OpDef:
    """One row. `cost` is arithmetic per element, in units of one addition."""

    name: str
    pattern: Pattern
    arity: int  # tensors and scalars read; -1 for any number
    cost: float = 1.0


def opdef(kind: str) -> OpDef:
    """The row of an op kind; KeyError if there is none."""
    return OPS[kind]


def _rows(pattern: Pattern, arity: int, cost: float, names: str) -> dict[str, OpDef]:
    return {n: OpDef(n, pattern, arity, cost) for n in names.split()}


_E = Pattern.ELEMENTWISE

# Elementwise ops read tensors of the result's shape (broadcasting is explicit) or scalars, all of
# one dtype, except: convert; comparisons and is* tests (any -> bool); where (bool, T, T).
UNARY = _rows(_E, 1, 1, "neg abs sign floor ceil round trunc logical_not bitwise_not isnan isinf")
UNARY_MATH = (
    _rows(_E, 1, 4, "sqrt rsqrt reciprocal")
    | _rows(_E, 1, 10, "exp exp2 expm1 log log2 log10 log1p sigmoid")
    | _rows(_E, 1, 14, "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc")
    | _rows(_E, 1, 200, "lgamma")
)
# div is true division of floats; truncdiv, floordiv, remainder (sign of the divisor) and fmod (sign
# of the dividend) act on floats, and on integers by a constant that is neither 0 nor -1.
BINARY = (
    _rows(_E, 2, 1, "add sub mul maximum minimum eq ne lt le gt ge copysign")
    | _rows(_E, 2, 1, "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor")
    | _rows(_E, 2, 2, "shift_left shift_right")
    | _rows(_E, 2, 4, "div truncdiv floordiv remainder fmod")
    | _rows(_E, 2, 4, "nextafter")
    | _rows(_E, 2, 20, "pow atan2 hypot")
)
TERNARY = _rows(_E, 3, 1, "where")
CONVERT = _rows(_E, 1, 1, "convert")

OPS: dict[str, OpDef] = {
    **UNARY,
    **UNARY_MATH,
    **BINARY,
    **TERNARY,
    **CONVERT,
    # broadcast: attrs dims[k] = the result's dimension that operand dimension k becomes; the
    # operand's extent equals the result's there (size-1 dims are reshaped away first).
    **_rows(Pattern.BROADCAST, 1, 0, "broadcast"),
    # reshape: same elements in row-major order. permute: attrs dims, result dim i is operand dim
    # dims[i]. slice: attrs start (sizes), step (ints, may be negative), one a dim, result's shape.
    **_rows(Pattern.VIEW, 1, 0, "reshape permute slice"),
    # cat: attrs dim. pad: attrs low, high (sizes, >= 0, a dim), operands (x, scalar fill).
    **_rows(Pattern.JOIN, -1, 1, "cat"),
    **_rows(Pattern.JOIN, 2, 1, "pad"),
    # take(x, index): attrs dims, one per dim of x: the result's dim it follows, or -1 for the one
    # dim that index selects; index has the result's shape and an integer dtype; attrs wrap: bool,
    # whether negative indices count from the end. An index out of range is an error.
    **_rows(Pattern.TAKE, 2, 2, "take"),
    # attrs dims (sorted, at least one); the reduced dims are gone from the result. argmax and
    # argmin index the row-major flattening of the reduced dims. Accumulation is in the result's
    # dtype, float32 for the halves.
    **_rows(Pattern.REDUCE, 1, 1, "sum prod amax amin any all"),
    **_rows(Pattern.REDUCE, 1, 3, "argmax argmin"),
    # uniform(seed: i64[2]): f32 in [0, 1), attrs stream: int; element n of the *logical* result is
    # Philox-4x32-10 keyed by seed[0], counter from (n, seed[1], stream); see ops/philox.py.
    **_rows(Pattern.RANDOM, 1, 20, "uniform"),
    # full: attrs value. iota: attrs start, step, along the only dim of the result.
    **_rows(Pattern.SOURCE, 0, 0, "full iota"),
    # attrs target: 'aten.mm.default'; args: Python text of the call's arguments in which $0, $1 ...
    # are the operands and size symbols stand by name, e.g. '$0, None, [1, s0], dtype=torch.int64'.
    # Several results: attrs picks, the positions of the results in the returned tuple.
    # attrs effect: it must stay though nobody reads it; strided: False where results are sparse.
    **_rows(Pattern.OPAQUE, -1, 0, "opaque"),
}

COMPARISONS = frozenset(
    [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_not",
        "logical_and",
        "logical_or",
        "logical_xor",
        "isnan",
        "isinf",
    ]
)
TRANSCENDENTAL = frozenset(UNARY_MATH) | {"pow", "atan2", "hypot"}
