"""The op table: name, pattern, arity and cost of every op."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from tofuse.ir.types import DType


class Pattern(Enum):
    """How the iteration space of an op relates to its operands'."""

    ELEMENTWISE = "elementwise"
    BROADCAST = "broadcast"
    VIEW = "view"  # reshape, permute, slice
    CONCAT = "concat"  # cat and pad: the index selects the operand
    GATHER = "gather"  # a load with a computed index
    REDUCE = "reduce"
    SCAN = "scan"  # a running result along one dimension
    SCATTER = "scatter"  # combines values in elements that an index selects
    RECURRENCE = "recurrence"  # the state before each step of a loop over the first dimension
    CONTRACT = "contract"  # products of two operands, summed over a common dimension
    RANDOM = "random"
    SOURCE = "source"  # full and iota: no tensor operands
    OPAQUE = "opaque"  # run by PyTorch's operator


@dataclass(frozen=True)
class OpDef:
    """One row of the table. `cost` is the arithmetic per element in additions."""

    pattern: Pattern
    arity: int  # tensor and scalar operands; -1 for any number
    cost: float = 1.0


def reduction_identity(op: str, dtype: DType) -> float | int:
    """Return the start value of a reduction of this dtype; argmax and argmin compare values."""
    if op in ("sum", "any"):
        return 0
    if op in ("prod", "all"):
        return 1
    if dtype.is_float:
        lowest, highest = -math.inf, math.inf
    elif dtype in (DType.U8, DType.BOOL):
        lowest, highest = 0, 255 if dtype is DType.U8 else 1
    else:
        highest = 2 ** (dtype.itemsize * 8 - 1) - 1
        lowest = -highest - 1
    return lowest if op in ("amax", "argmax") else highest


def scan_identity(op: str, dtype: DType) -> float | int:
    """Return the start value of a scan of this dtype."""
    return reduction_identity(_SCAN_REDUCTIONS[op], dtype)


def scan_dtype(op: str, dtype: DType) -> DType:
    """Return the dtype in which a scan accumulates.

    Sums and products of narrower floats take float64, in which those of a few elements are finite.
    """
    is_wide = dtype.is_float and op in ("cumsum", "cumprod")
    return DType.F64 if is_wide else dtype.opmath


def _rows(pattern: Pattern, arity: int, cost: float, names: str) -> dict[str, OpDef]:
    return dict.fromkeys(names.split(), OpDef(pattern, arity, cost))


_E = Pattern.ELEMENTWISE

# Functions that have a cheaper form where the result is rounded to half precision.
ELEMENTARY = frozenset(("sin", "cos", "exp", "tanh", "erf", "sigmoid"))

# Elementwise ops take tensors of the result's shape (broadcasting is explicit) or scalars, all of
# one dtype. Exceptions: convert; comparisons and is* tests (any -> bool); where (bool, T, T).
TESTS = _rows(_E, 1, 1, "logical_not isnan isinf")
UNARY = TESTS | _rows(_E, 1, 1, "neg abs sign floor ceil round trunc bitwise_not")
UNARY_MATH = (
    _rows(_E, 1, 4, "sqrt rsqrt reciprocal")
    | _rows(_E, 1, 10, "exp exp2 expm1 log log2 log10 log1p sigmoid")
    | _rows(_E, 1, 14, "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc")
    | _rows(_E, 1, 200, "lgamma")
)
# div is true division of floats; truncdiv, floordiv, remainder (sign of the divisor) and fmod (sign
# of the dividend) act on floats, and on integers by a constant that is neither 0 nor -1.
COMPARISONS = _rows(_E, 2, 1, "eq ne lt le gt ge")
LOGICAL = _rows(_E, 2, 1, "logical_and logical_or logical_xor")
BINARY = (
    COMPARISONS
    | LOGICAL
    | _rows(_E, 2, 1, "add sub mul maximum minimum copysign bitwise_and bitwise_or bitwise_xor")
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
    # broadcast: attrs dims; operand dim k becomes result dim dims[k], with the same extent (dims
    # of size 1 are reshaped away first).
    **_rows(Pattern.BROADCAST, 1, 0, "broadcast"),
    # reshape: same elements in row-major order. permute: attrs dims, result dim i is operand dim
    # dims[i]. slice: attrs start (sizes), step (ints, may be negative), one a dim, result's shape.
    **_rows(Pattern.VIEW, 1, 0, "reshape permute slice"),
    # cat: attrs dim. pad: attrs low, high (sizes, >= 0, a dim), operands (x, scalar fill).
    **_rows(Pattern.CONCAT, -1, 1, "cat"),
    **_rows(Pattern.CONCAT, 2, 1, "pad"),
    # take(x, index): attrs dims, one per dim of x: the result dim that indexes it, or -1 for the
    # one dim that `index` indexes; index has the result's shape and an integer dtype; attrs wrap:
    # bool, whether negative indices count from the end. An index out of range is an error.
    **_rows(Pattern.GATHER, 2, 2, "take"),
    # attrs dims (sorted, at least one), which the result does not have. argmax and argmin return
    # an index into the row-major flattening of the reduced dims. Accumulation is in the result's
    # dtype, or float32 for half precision.
    **_rows(Pattern.REDUCE, 1, 1, "sum prod amax amin any all"),
    **_rows(Pattern.REDUCE, 1, 3, "argmax argmin"),
    # attrs dim, reverse: bool. Element k of the result combines elements 0 to k of the dimension,
    # or k to the last one if `reverse`. Accumulation is in `scan_dtype`.
    **_rows(Pattern.SCAN, 1, 4, "cumsum cumprod cummax cummin"),
    **_rows(Pattern.SCAN, 1, 100, "logcumsumexp"),
    # scatter_reduce(x, index): attrs dim; reduce: sum, prod, amax, amin or any; start: the number
    # with which every element begins; shape; wrap, as of take. Element e of x is combined into the
    # element of the result that has e's indices, but `index[e]` in dimension dim. Accumulation is
    # in the result's dtype, in order of e.
    **_rows(Pattern.SCATTER, 2, 2, "scatter_reduce"),
    # recurrence(starts..., inputs...): the first `states` operands are the start values, the others
    # have an element for each step in their first dimension. attrs: states; steps; state, the
    # number of the state that element t of the result has before step t; body and next: see
    # `ir.recurrence`.
    **_rows(Pattern.RECURRENCE, -1, 4, "recurrence"),
    # contract(a, b): a[..., m, k] b[..., k, n], summed over k into the attribute dtype; the leading
    # dimensions are the same. Half precision accumulates in float32. Its operands are rounded.
    **_rows(Pattern.CONTRACT, 2, 1, "contract"),
    # uniform(seed: i64[2]): f32 in [0, 1), attrs stream: int; element n of the *logical* result is
    # Philox-4x32-10 keyed by seed[0], counter from (n, seed[1], stream); see ops/philox.py.
    # bernoulli(seed: i64[2]): b1, attrs stream, below: int, from 1 to 65535; true where 16 random
    # bits are less than `below`.
    **_rows(Pattern.RANDOM, 1, 20, "uniform"),
    **_rows(Pattern.RANDOM, 1, 10, "bernoulli"),
    # full: attrs value. iota: attrs start, step, along the only dim of the result.
    **_rows(Pattern.SOURCE, 0, 0, "full iota"),
    # attrs target: 'aten.mm.default'; args: the CallArguments, printed with operands $0, $1, ...
    # and size symbols by name, such as '$0, None, [1, s0], dtype=torch.int64'.
    # picks: with several results, their positions in the returned tuple; effect: True if the op
    # must run even if no result is used; strided: False if results are sparse; check_shapes: True
    # if the operator may return results of other shapes than the types say.
    **_rows(Pattern.OPAQUE, -1, 0, "opaque"),
}

# A scan starts with the identity of this reduction; that of logcumsumexp is minus infinity.
_SCAN_REDUCTIONS = {
    **{"cumsum": "sum", "cumprod": "prod", "cummax": "amax", "cummin": "amin"},
    "logcumsumexp": "amax",
}
PREDICATES = frozenset(TESTS | COMPARISONS | LOGICAL)
# maximum and minimum are not commutative: the order decides between 0.0 and -0.0
COMMUTATIVE = frozenset({"add", "mul", "eq", "ne", *LOGICAL})
# argmax and argmin start after all positions: the first element wins even if it is the identity
NO_POSITION = 2**62
TRANSCENDENTAL = frozenset(UNARY_MATH) | {"pow", "atan2", "hypot"}
REDUCTION_COMBINES = {  # two partial results of a reduction
    **{"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"},
    **{"any": "logical_or", "all": "logical_and"},
}
