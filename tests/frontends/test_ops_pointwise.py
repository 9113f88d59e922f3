"""Pointwise ops against torch, over element types and edge sizes."""

import math

import pytest
import torch

from tests.frontends.support import build_definition, check, promote_half
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32)
ALL = (*FLOATS, *INTS, torch.bool)
SHAPES = ((), (1,), (0, 3), (3, 17), (2, 1, 5))
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-3, 30.0, math.inf, -math.inf, math.nan)


def samples(shape, dtype, low=-3.0, high=3.0, seed=0):
    """Return random elements, with special values if there is room."""
    torch.manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(int(low) - 2, int(high) + 2, shape, dtype=dtype)
    x = torch.rand(shape) * (high - low) + low
    if x.numel() > len(SPECIAL):
        x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL)
    return x.to(dtype)


def to_float(x):
    return x if x.dtype.is_floating_point else x.float()


def identity(x):
    return x


def torch_functions(names):
    """Return the torch functions of these names."""
    return {name: getattr(torch, name) for name in names.split()}


def on_float(function):
    return lambda x: function(to_float(x))


def unless_integer(function):
    """Return a function that leaves integers unchanged."""
    return lambda x: function(x) if x.dtype.is_floating_point else x


MATH = torch_functions(
    "acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 erf erfc erfinv frac lgamma log "
    "log10 log1p log2 reciprocal rsqrt sigmoid sin sinh sqrt tan tanh"
)
UNARY = {
    **{name: on_float(function) for name, function in MATH.items()},
    "silu": on_float(torch.nn.functional.silu),
    "erfcinv": lambda x: torch.erfinv(1 - to_float(x).double()).to(to_float(x).dtype),
    "abs": lambda x: x if x.dtype == torch.bool else x.abs(),
    "sign": torch.sign,
    **{
        name: unless_integer(function)
        for name, function in torch_functions("ceil floor round trunc").items()
    },
    "set": identity,
    "segment_set": identity,
    **torch_functions("logical_not isfinite isinf isnan isneginf isposinf isreal signbit real"),
}
DTYPE_PRESERVING = ("set", "segment_set", "real")


def on_each(name):
    """Apply the op to each input."""
    return lambda fd, *tensors: [getattr(fd.ops, name)(t) for t in tensors]


def on_pairs(name):
    """Apply the op to the first and second input, the third and fourth, and so on."""
    return lambda fd, *tensors: [
        getattr(fd.ops, name)(a, b) for a, b in zip(tensors[::2], tensors[1::2], strict=True)
    ]


def pairwise(function):
    return lambda *tensors: [
        function(promote_half(a), promote_half(b))
        for a, b in zip(tensors[::2], tensors[1::2], strict=True)
    ]


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    keep = identity if name in DTYPE_PRESERVING else promote_half
    low, high = (0.0, 2.0) if name == "erfcinv" else (-3.0, 3.0)
    check(
        on_each(name),
        lambda *tensors: [UNARY[name](keep(t)) for t in tensors],
        [samples((3, 17), dtype, low, high) for dtype in ALL],
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("name", ["neg", "relu"])
def test_unary_without_bools(name):
    inputs = [samples((3, 17), dtype) for dtype in (*FLOATS, *INTS)]
    check(on_each(name), lambda *ts: [getattr(torch, name)(promote_half(t)) for t in ts], inputs)
    with pytest.raises(DefinitionError, match=f"{name}: it does not take Bool"):
        build_definition(on_each(name), [samples((3,), torch.bool)])


def test_bitwise_not():
    inputs = [samples((3, 17), dtype) for dtype in (*INTS, torch.bool)]
    check(on_each("bitwise_not"), lambda *ts: [~t for t in ts], inputs)


BINARY = {
    "atan2": lambda a, b: torch.atan2(to_float(a), to_float(b)),
    "truediv": torch.true_divide,
    **torch_functions("add mul maximum minimum eq ge gt le lt ne logical_and logical_or"),
}
PAIRS = [(d, d) for d in ALL] + [
    (torch.float32, torch.int64),
    (torch.float16, torch.bfloat16),
    (torch.float16, torch.float64),
    (torch.int32, torch.int64),
    (torch.bool, torch.bfloat16),
]


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    inputs = [samples((3, 17), d, seed=k) for pair in PAIRS for k, d in enumerate(pair)]
    check(on_pairs(name), pairwise(BINARY[name]), inputs)


@pytest.mark.parametrize("name", ["sub", "fmod", "remainder", "pow"])
def test_arithmetic_without_bools(name):
    inputs = []
    for dtype in (*FLOATS, *INTS):
        divisor = samples((3, 17), dtype, 1.0, 4.0, seed=1)
        inputs += [samples((3, 17), dtype), divisor.abs() + (not dtype.is_floating_point)]
    check(on_pairs(name), pairwise(getattr(torch, name)), inputs)


def test_integer_division_truncates():
    a = torch.tensor([7, -7, 7, -7, 0])
    b = torch.tensor([2, 2, -2, -2, 5])
    for dtype in INTS:
        x, y = a.to(dtype), b.to(dtype)
        check(
            lambda fd, x, y: (fd.ops.div(x, y), fd.ops.mod(x, y), x / y, x % y),
            lambda x, y: [torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)] * 2,
            [x, y],
        )
        check(
            lambda fd, x: (fd.ops.div(x, 2), fd.ops.div(x, -1), fd.ops.mod(x, 3), x / -3),
            lambda x: [
                torch.div(x, 2, rounding_mode="trunc"),
                -x,
                torch.fmod(x, 3),
                torch.div(x, -3, rounding_mode="trunc"),
            ],
            [x],
        )
    check(lambda fd, x, y: fd.ops.div(x, y), torch.div, [a.float(), b.float()])


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "gcd"])
def test_bitwise_and_gcd(name):
    dtypes = INTS if name == "gcd" else (*INTS, torch.bool)
    inputs = [samples((3, 17), d, seed=k) for d in dtypes for k in range(2)]
    check(on_pairs(name), pairwise(getattr(torch, name)), inputs)


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shifts(name):
    function = getattr(torch, name)
    inputs = [samples((3, 17), d, seed=k).abs() * (-1) ** (1 - k) for d in INTS for k in range(2)]
    check(on_pairs(name), pairwise(function), inputs)
    check(lambda fd, x: getattr(fd.ops, name)(x, 3), lambda x: function(x, 3), [inputs[0]])


def logical_shift(x, amount):
    """Shift right and fill with zeros."""
    width = 8 * x.dtype.itemsize
    found = [(int(v) % 2**width) >> int(k) for v, k in zip(x, amount, strict=True)]
    return torch.tensor([f - 2**width if f >= 2 ** (width - 1) else f for f in found]).to(x.dtype)


@pytest.mark.parametrize("dtype", INTS)
def test_logical_right_shift(dtype):
    last = 8 * dtype.itemsize - 1
    x = torch.tensor([5, -5, 0, -1, 2**30], dtype=dtype)
    amounts = torch.tensor([0, 1, 2, last, 4], dtype=dtype)
    check(
        lambda fd, t, k: [fd.ops.logical_right_shift(t, n) for n in (k, 0, 1, last)],
        lambda t, k: [
            logical_shift(t, n) for n in (k, *(torch.full((5,), c) for c in (0, 1, last)))
        ],
        [x, amounts],
    )


def test_nextafter():
    a, b = samples((3, 17), torch.float32), samples((3, 17), torch.float32, seed=1)
    check(lambda fd, x, y: fd.ops.nextafter(x, y), torch.nextafter, [a, b])


@pytest.mark.parametrize("dtype", FLOATS)
def test_ternary(dtype):
    inputs = [samples((3, 17), dtype, -1.0, 1.0, seed=k) for k in range(3)]
    a, b, w = map(promote_half, inputs)
    x, y = inputs[:2]
    mask = samples((3, 17), torch.bool)
    check(
        lambda fd, x, y, z, m: [
            fd.ops.lerp(x, y, z),
            fd.ops.where(m, x, y),
            fd.ops.where(m, x, 2),
            fd.ops.addcmul(x, y, z, 0.5),
            fd.ops.clamp(x, -0.5, 0.5),
            fd.ops.clamp(x, min=0.0),
            fd.ops.clamp(x, max=0.25),
            fd.ops.threshold(x, 0.0, -7.0),
            fd.ops.add_alpha(x, y, 3.0),
            fd.ops.sub_alpha(x, y, 0.5),
        ],
        lambda *_: [
            torch.lerp(a, b, w),
            torch.where(mask, x, y),
            torch.where(mask, x, 2.0),
            torch.addcmul(a, b, w, value=0.5),
            a.clamp(-0.5, 0.5),
            a.clamp(min=0.0),
            a.clamp(max=0.25),
            torch.nn.functional.threshold(a, 0.0, -7.0),
            torch.add(a, b, alpha=3.0),
            torch.sub(a, b, alpha=0.5),
        ],
        [*inputs, mask],
        rtol=1e-5,
        atol=1e-5,
    )


def test_edge_shapes():
    for shape in SHAPES:
        x, y = samples(shape, torch.float32), samples(shape, torch.float32, seed=1)
        check(
            lambda fd, a, b: (fd.ops.add(a, b), fd.ops.exp(a), fd.ops.lt(a, 0.5), fd.ops.erfinv(a)),
            lambda a, b: [a + b, a.exp(), a < 0.5, a.erfinv()],
            [x, y],
        )


def test_sizes_of_one_broadcast():
    a, b = samples((4, 1, 5), torch.float32), samples((1, 3, 5), torch.float32, seed=1)
    point = torch.tensor(2.0)
    check(
        lambda fd, x, y, p: fd.ops.mul(fd.ops.add(x, y), p),
        lambda x, y, p: (x + y) * p,
        [a, b, point],
    )


def test_promotion_with_scalars():
    whole, half = torch.arange(4), torch.arange(4).half()
    check(
        lambda fd, w, h: (w + 1, w + 1.5, h + 1, h * 2.5, fd.ops.truediv(w, 2), fd.ops.eq(w, 1.5)),
        lambda w, h: [w + 1, w + 1.5, h.float() + 1, h.float() * 2.5, w / 2, w == 1.5],
        [whole, half],
    )


def test_half_precision_is_promoted_to_float():
    x = torch.randn(5).bfloat16()
    check(
        lambda fd, t: (fd.ops.exp(t), fd.ops.cast(fd.ops.exp(t), DataType.BFloat16)),
        lambda t: [t.float().exp(), t.float().exp().bfloat16()],
        [x],
    )


def test_operators():
    x, y = samples((3, 17), torch.float32), samples((3, 17), torch.float32, 0.5, 2.0, seed=1)
    check(
        lambda fd, a, b: [
            a + b, a - b, a * b, a / b, a**2, 2 - a, 2 / b, -a, abs(a),
            a < b, a <= b, a > b, a >= b, a == b, a != b, 2 ** b,
        ],
        lambda a, b: [
            a + b, a - b, a * b, a / b, a**2, 2 - a, 2 / b, -a, abs(a),
            a < b, a <= b, a > b, a >= b, a == b, a != b, 2**b,
        ],
        [x, y],
    )  # fmt: skip
    i, j = torch.tensor([6, -5, 12]), torch.tensor([3, 2, 4])
    check(
        lambda fd, a, b: [a & b, a | b, a ^ b, a << b, a >> b, ~a, a % b],
        lambda a, b: [a & b, a | b, a ^ b, a << b, a >> b, ~a, torch.fmod(a, b)],
        [i, j],
    )


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex(dtype):
    torch.manual_seed(0)
    x, y = torch.randn(3, 4, dtype=dtype), torch.randn(3, 4, dtype=dtype)
    check(
        lambda fd, a, b: [
            fd.ops.add(a, b), fd.ops.mul(a, 2.0), fd.ops.div(a, b), fd.ops.exp(a), fd.ops.abs(a),
            fd.ops.real(a), fd.ops.imag(a), fd.ops.eq(a, b), fd.ops.isreal(a), fd.ops.neg(a),
        ],
        lambda a, b: [
            a + b, a * 2.0, a / b, a.exp(), a.abs(), a.real, a.imag, a == b, a.isreal(), -a,
        ],
        [x, y],
    )  # fmt: skip
    check(
        lambda fd, a, b: [
            fd.ops.complex(fd.ops.real(a), fd.ops.imag(b)),
            fd.ops.permute(fd.ops.set(a), [1, 0]),
            fd.ops.sum(b, [1]),
            fd.ops.reshape(a, [2, 6]),
            fd.ops.cat([a, b], 1),
        ],
        lambda a, b: [
            torch.complex(a.real, b.imag), a.T, b.sum(1), a.reshape(2, 6), torch.cat([a, b], 1)
        ],
        [x, y],
        static_sizes=True,
    )  # fmt: skip


FP4 = (DataType.Float4_e2m1fn, DataType.Float4_e2m1fn_x2)


def test_cast_between_all_types():
    x = torch.tensor([0.0, 1.0, 2.5, -3.5])
    types = [d for d in DataType if d not in (DataType.Null, *FP4)]
    check(
        lambda fd, t, positive: [fd.ops.cast(positive if d in UNSIGNED else t, d) for d in types],
        lambda t, positive: [(positive if d in UNSIGNED else t).to(d.torch) for d in types],
        [x, x.abs()],
    )


UNSIGNED = (DataType.UInt64, DataType.Float8_e8m0fnu)


def test_random_like():
    x = torch.zeros(64, 257)
    torch.manual_seed(3)
    fd = build_definition(
        lambda fd, t: (fd.ops.rand_like(t), fd.ops.randn_like(t), fd.ops.rand_like(t)), [x]
    )
    first, bell, second = fd.execute([x])
    assert first.min() >= 0 and first.max() < 1 and abs(float(first.mean()) - 0.5) < 0.01
    assert abs(float(bell.mean())) < 0.03 and abs(float(bell.std()) - 1) < 0.03
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(fd.execute([x])[0], first)
    assert not torch.equal(fd.execute([x])[0], first)
    fixed = build_definition(lambda fd, t: fd.ops.rand_like(t, rng_seed=1, rng_offset=2), [x])
    assert torch.equal(fixed.execute([x])[0], fixed.execute([x])[0])
