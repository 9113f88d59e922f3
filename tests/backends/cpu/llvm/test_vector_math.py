"""Vector math functions: their stated error bounds, special values, equal bits at every width."""

import ctypes
import itertools
import math
import platform
from collections.abc import Callable
from ctypes.util import find_library
from functools import cache

import llvmlite.binding as llvm
import mpmath  # type: ignore[import-untyped]  # it has no stubs
import numpy as np
import pytest
import torch

from tofuse.backends.cpu.llvm.load import host_processor
from tofuse.backends.cpu.llvm.vector_math.formula_builder import math_symbol
from tofuse.backends.cpu.llvm.vector_math.registry import MATH, math_definitions

Kernel = Callable[..., np.ndarray]
WIDTHS = (1, 4, 8, 16)
Dtype = type[np.float32] | type[np.float64]
DTYPES: dict[str, Dtype] = {"f32": np.float32, "f64": np.float64}
SCALARS = {"f32": "float", "f64": "double"}
ENGINES: list[object] = []  # compiled code lives as long as these do
UNARY = tuple(name for name, spec in MATH.items() if spec.arity == 1)


def loop(name: str, elem: str, width: int) -> str:
    scalar = SCALARS[elem]
    kind = scalar if width == 1 else f"<{width} x {scalar}>"
    operands = ("%a", "%b")[: MATH[name].arity]
    loads = "".join(
        f"  {p}p = getelementptr {scalar}, ptr {p}, i64 %i\n"
        f"  {p}v = load {kind}, ptr {p}p, align 4\n"
        for p in operands
    )
    arguments = ", ".join(f"{kind} {p}v" for p in operands)
    return f"""
define void @loop_{name}({", ".join(f"ptr {p}" for p in operands)}, ptr %o, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{loads}  %r = call {kind} {math_symbol(name, elem, width)}({arguments})
  %op = getelementptr {scalar}, ptr %o, i64 %i
  store {kind} %r, ptr %op, align 4
  %j = add i64 %i, {width}
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""


@cache
def kernels(elem: str, width: int) -> dict[str, Kernel]:
    """Return every function over arrays, compiled in one module."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    texts: dict[str, str] = {}
    for name in MATH:  # one dict per function, as modules merge them
        texts |= math_definitions([(name, elem)], width, avx512=host_processor().avx512)
    source = "\n".join([*texts.values(), *(loop(name, elem, width) for name in MATH)])
    module = llvm.parse_assembly(source)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    ENGINES.append(engine)
    return {
        n: wrap_function(engine.get_function_address(f"loop_{n}"), elem, MATH[n].arity)
        for n in MATH
    }


def wrap_function(address: int, elem: str, arity: int) -> Kernel:
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arity + 1), ctypes.c_int64)(address)
    dtype = DTYPES[elem]

    def call(*operands: np.ndarray) -> np.ndarray:
        count = len(operands[0])
        padded = -(-count // 16) * 16
        inputs = [np.ones(padded, dtype) for _ in operands]
        for array, values in zip(inputs, operands, strict=True):
            array[:count] = values
        out = np.empty(padded, dtype)
        function(*(array.ctypes.data for array in inputs), out.ctypes.data, padded)
        return out[:count]

    return call


def bits(values: np.ndarray) -> np.ndarray:
    """Return the bits, with one pattern for every nan."""
    plain = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    return plain.view(np.int32 if values.dtype == np.float32 else np.int64)


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return distances in units in the last place; inf if just one is nan or inf."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        wide = exact.astype(np.longdouble)
        _, exponent = np.frexp(wide)
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent, info.minexp + 1) - info.nmant - 1)
        distance = np.abs(got.astype(np.longdouble) - wide) / unit
        # an exact value that rounds to inf must give inf
        same = np.isinf(got) & (wide.astype(got.dtype) == got) | np.isnan(got) & np.isnan(wide)
    distance = np.where(same, 0, distance)
    return np.where(np.isnan(distance), np.inf, distance)


def assert_within(bound: float, got: np.ndarray, exact: np.ndarray, *operands: np.ndarray) -> None:
    distance = errors(got, exact)
    worst = int(np.argmax(distance))
    at = tuple(float(x[worst]) for x in operands)
    assert distance[worst] <= bound, f"{distance[worst]} at {at}: {got[worst]}, not {exact[worst]}"


@cache
def binary32_samples() -> np.ndarray:
    """Return every 65521st binary32 number, multiples of pi/4, and numbers around 0, 1 and -1."""
    stride = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    turns = (np.arange(1, 20000) * (math.pi / 4)).astype(np.float32)
    near = np.concatenate([np.arange(-300, 300) + one for one in (0x3F800000, 0xBF800000)])
    parts = [
        stride,
        turns,
        np.nextafter(turns, np.float32(0)),
        near.astype(np.uint32).view(np.float32),
        np.linspace(-12, 12, 20001, dtype=np.float32),
        np.linspace(-110, 110, 20001, dtype=np.float32),
        np.linspace(0.25, 4, 20001, dtype=np.float32),
        np.array(special_operands("f32"), np.float32),
    ]
    return np.concatenate(parts)


@cache
def binary64_samples() -> np.ndarray:
    rng = np.random.default_rng(1)
    signs = rng.choice([-1.0, 1.0], 2000)
    parts = [
        rng.uniform(-1, 1, 500),
        rng.uniform(-30, 30, 400),
        rng.uniform(-720, 720, 200),
        signs[:500] * 2.0 ** rng.uniform(-60, 40, 500),
        1 + signs[:100] * 2.0 ** rng.uniform(-50, -1, 100),
        signs[:150] * 2.0 ** rng.uniform(-1074, 1023.9, 150),
        np.arange(1, 100) * (math.pi / 4),
        np.array([6381956970095103.0 * 2.0**797]),  # nearest to a multiple of pi/2 of all
    ]
    return np.concatenate(parts)


def special_operands(elem: str) -> list[float]:
    info = np.finfo(DTYPES[elem])
    positive = [0.0, 1.0, 2.0, 0.5, math.inf, 3.0, 2.5, 1e10, 1e30, float(info.max)]
    positive += [float(info.smallest_subnormal), float(info.tiny), 1 + float(info.eps)]
    return [math.nan, *positive, *(-x for x in positive)]


@pytest.mark.parametrize("name", UNARY)
def test_binary32_error(name: str) -> None:
    x = binary32_samples()
    exact = (getattr(torch, name, None) or getattr(torch.special, name))(
        torch.from_numpy(x).double()
    ).numpy()
    assert_within(MATH[name].ulp_f32, kernels("f32", 16)[name](x), exact, x)


MP = mpmath.mp.clone()
MP.prec = 130
EXACT: dict[str, Callable[..., mpmath.mpf]] = {
    "pow": lambda x, y: x**y,
    "exp2": lambda x: MP.mpf(2) ** x,
    "sigmoid": lambda x: 1 / (1 + MP.exp(-x)),
    "rsqrt": lambda x: 1 / MP.sqrt(x),
    "log2": lambda x: MP.log(x) / MP.log(2),
    "log10": lambda x: MP.log(x) / MP.log(10),
    "asinh": lambda x: MP.sign(x) * MP.asinh(abs(x)),  # mpmath cancels below 0
    "erfc": lambda x: MP.erfc(x) if abs(x) < 100 else MP.mpf(0 if x > 0 else 2),
    "erf": lambda x: MP.erf(x) if abs(x) < 100 else MP.sign(x),
}


def exact_values(name: str, *operands: np.ndarray) -> np.ndarray:
    """Return the exact values to the 64 bits of a long double."""
    function = EXACT[name] if name in EXACT else getattr(MP, name)
    heads, tails = [], []
    for point in zip(*operands, strict=True):
        try:
            value = function(*(MP.mpf(float(x)) for x in point))
        except ZeroDivisionError:
            value = MP.inf
        head = float(value) if isinstance(value, MP.mpf) else math.nan
        heads.append(head)
        tails.append(float(value - head) if math.isfinite(head) else 0.0)
    return np.array(heads, np.longdouble) + np.array(tails, np.longdouble)


@pytest.mark.parametrize("name", UNARY)
def test_binary64_error(name: str) -> None:
    x = binary64_samples()
    if name == "rsqrt":
        x = np.abs(x)
    assert_within(MATH[name].ulp_f64, kernels("f64", 8)[name](x), exact_values(name, x), x)


@pytest.mark.parametrize("elem", DTYPES)
def test_pow_error(elem: str) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [
            rng.uniform(0, 3, 700),
            2.0 ** rng.uniform(-120, 120, 700),
            1 + rng.uniform(-1, 1, 300) * 2.0 ** rng.uniform(-20, 0, 300),
            rng.uniform(0, 1e-40, 50),
        ]
    ).astype(DTYPES[elem])
    largest = {"f32": 104.0, "f64": 746.0}[elem]
    with np.errstate(divide="ignore"):
        y = rng.uniform(-1, 1, len(x)) * largest / np.abs(np.log(x.astype(np.float64)))
    y = (y * rng.choice([1, 1, 0.1, 0.01], len(x))).astype(DTYPES[elem])
    bound = {"f32": MATH["pow"].ulp_f32, "f64": MATH["pow"].ulp_f64}[elem]
    exact = exact_values("pow", x, y)
    assert_within(bound, kernels(elem, 4)["pow"](x, y), exact, x, y)


@pytest.mark.parametrize("elem", DTYPES)
def test_atan2_error(elem: str) -> None:
    rng = np.random.default_rng(4)
    y, x = (
        np.concatenate([rng.normal(size=3000), rng.choice([-1, 1], 500) * 2.0**exponents])
        for exponents in rng.uniform(-120, 120, (2, 500))
    )
    y, x = y.astype(DTYPES[elem]), x.astype(DTYPES[elem])
    bound = {"f32": MATH["atan2"].ulp_f32, "f64": MATH["atan2"].ulp_f64}[elem]
    exact = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    assert_within(bound, kernels(elem, 4)["atan2"](y, x), exact, y, x)


@pytest.mark.parametrize("name", ("sin", "cos"))
def test_sin_and_cos_stay_within_one(name: str) -> None:
    """So that asin of them is defined."""
    crests = (np.arange(0, 80000) * (math.pi / 2)).astype(np.float32)
    x = np.concatenate([crests, np.linspace(1.5, 1.64, 50001, dtype=np.float32)])
    assert np.all(np.abs(kernels("f32", 16)[name](x)) <= 1.0)
    assert np.all(np.abs(kernels("f64", 8)[name](x)) <= 1.0)


@pytest.mark.parametrize("elem", DTYPES)
def test_atan2_quadrants(elem: str) -> None:
    pairs = itertools.product(special_operands(elem), repeat=2)
    y, x = (np.array(v, DTYPES[elem]) for v in zip(*pairs, strict=True))
    exact = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble)).astype(DTYPES[elem])
    got = kernels(elem, 4)["atan2"](y, x)
    assert_within(2.0, got, exact, y, x)
    numbers = ~np.isnan(exact)
    assert np.array_equal(np.signbit(got)[numbers], np.signbit(exact)[numbers])
    zero = exact == 0
    assert np.array_equal(got[zero], exact[zero])


INF, NAN = math.inf, math.nan
ODD = ("expm1", "sinh", "tanh", "log1p", "sin", "tan", "asin", "atan", "asinh", "atanh", "erf")
SPECIAL = {  # operand, exact result
    "exp": ((0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)),
    "exp2": ((0.0, 1.0), (INF, INF), (-INF, 0.0), (3.0, 8.0), (-126.0, 2.0**-126), (1e4, INF)),
    "expm1": ((INF, INF), (-INF, -1.0), (-1e4, -1.0), (1e4, INF)),
    "sinh": ((INF, INF), (-INF, -INF), (1e4, INF)),
    "cosh": ((0.0, 1.0), (INF, INF), (-INF, INF), (-1e4, INF)),
    "tanh": ((INF, 1.0), (-INF, -1.0), (50.0, 1.0)),
    "sigmoid": ((0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (-1e4, 0.0), (1e4, 1.0)),
    "log": ((0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, NAN), (-INF, NAN)),
    "log2": ((0.0, -INF), (1.0, 0.0), (8.0, 3.0), (2.0**-149, -149.0), (INF, INF), (-1.0, NAN)),
    "log10": ((0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, NAN)),
    "log1p": ((-1.0, -INF), (INF, INF), (-2.0, NAN), (-INF, NAN)),
    "sin": ((INF, NAN), (-INF, NAN)),
    "cos": ((0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)),
    "tan": ((INF, NAN), (-INF, NAN)),
    "asinh": ((INF, INF), (-INF, -INF)),
    "acosh": ((1.0, 0.0), (INF, INF), (0.5, NAN), (-1.0, NAN), (-INF, NAN), (-3e38, NAN)),
    "atanh": ((1.0, INF), (-1.0, -INF), (1.5, NAN), (-INF, NAN)),
    "asin": ((1.5, NAN), (-1.5, NAN), (INF, NAN)),
    "acos": ((1.0, 0.0), (1.5, NAN), (-1.5, NAN), (INF, NAN)),
    "atan": ((INF, math.pi / 2), (-INF, -math.pi / 2)),
    "erf": ((INF, 1.0), (-INF, -1.0), (20.0, 1.0)),
    "erfc": ((0.0, 1.0), (INF, 0.0), (-INF, 2.0), (50.0, 0.0), (-20.0, 2.0)),
    "rsqrt": ((0.0, INF), (-0.0, -INF), (INF, 0.0), (4.0, 0.5), (-1.0, NAN)),
}


@pytest.mark.parametrize("elem", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str, elem: str) -> None:
    cases = [*SPECIAL[name], (NAN, NAN)]
    if name in ODD:
        tiny = float(np.finfo(DTYPES[elem]).smallest_subnormal)
        cases += [(0.0, 0.0), (-0.0, -0.0)]
        cases += [(tiny, tiny), (-tiny, -tiny)]
    operands, expected = (np.array(v, DTYPES[elem]) for v in zip(*cases, strict=True))
    for width in WIDTHS:
        got = kernels(elem, width)[name](operands)
        assert np.array_equal(bits(got), bits(expected)), list(zip(cases, got, strict=True))


def c99_pow(x: float, y: float) -> float:
    """Return C's pow: Python's raises where C99 gives inf or nan."""
    odd = y == math.floor(y) and math.fmod(y, 2) != 0 if math.isfinite(y) else False
    try:
        return math.pow(x, y)
    except OverflowError:
        return math.copysign(INF, x) if odd else INF
    except ValueError:
        if x != 0:
            return NAN
        return math.copysign(INF, x) if odd else INF


@pytest.mark.parametrize("elem", DTYPES)
def test_pow_special_values(elem: str) -> None:
    pairs = itertools.product(special_operands(elem), repeat=2)
    x, y = (np.array(v, DTYPES[elem]) for v in zip(*pairs, strict=True))
    with np.errstate(over="ignore"):
        exact = np.array([c99_pow(float(a), float(e)) for a, e in zip(x, y, strict=True)]).astype(
            DTYPES[elem]
        )
    got = kernels(elem, 8)["pow"](x, y)
    assert_within(1.0, got, exact, x, y)
    numbers = ~np.isnan(exact)
    assert np.array_equal(np.signbit(got)[numbers], np.signbit(exact)[numbers])


@pytest.mark.parametrize("elem", DTYPES)
@pytest.mark.parametrize("name", MATH)
def test_every_width_gives_the_same_bits(name: str, elem: str) -> None:
    with np.errstate(invalid="ignore"):  # signalling nans
        x = binary32_samples()[::23].astype(DTYPES[elem])
    operands = (x,) if MATH[name].arity == 1 else (x, np.roll(x, 777))
    narrow = bits(kernels(elem, 1)[name](*operands))
    for width in WIDTHS[1:]:
        assert np.array_equal(bits(kernels(elem, width)[name](*operands)), narrow), width


def test_definitions_are_keyed_by_symbol() -> None:
    texts = math_definitions([("exp", "f32"), ("sin", "f64")], 16)
    assert list(texts)[-2:] == ["@tofuse.exp.v16f32", "@tofuse.sin.v16f64"]
    assert all(f"{symbol}(" in text or f"{symbol} =" in text for symbol, text in texts.items())
    assert texts["@llvm.fma.v16f32"].startswith("declare <16 x float> @llvm.fma.v16f32(")
    assert math_symbol("exp", "f32", 1) == "@tofuse.exp.f32"


@pytest.mark.parametrize("elem", DTYPES)
def test_fmod_is_exact(elem: str) -> None:
    """Arbitrary bits, quotients near integers and special values give C's result, as in NumPy."""
    rng, dtype = np.random.default_rng(7), DTYPES[elem]
    integer = np.int32 if elem == "f32" else np.int64
    info = np.iinfo(integer)
    anything = rng.integers(info.min, info.max, (2, 20000), integer).view(dtype)
    with np.errstate(all="ignore"):  # signalling nans, and numbers that are too large
        divisor = rng.uniform(0.5, 1, 20000).astype(dtype)
        product = np.multiply(rng.integers(1, 2**21, 20000), divisor).astype(dtype)
        around = [product, np.nextafter(product, dtype(0)), np.nextafter(product, dtype(np.inf))]
        sizes = np.array(special_operands(elem))
        few, many = rng.normal(size=(2, 20000)) * np.array([[1], [100]])
        x = np.concatenate([anything[0], *around, many, np.repeat(sizes, len(sizes))])
        y = np.concatenate([anything[1], *[divisor] * 3, few, np.tile(sizes, len(sizes))])
        x, y = x.astype(dtype), y.astype(dtype)
        exact = np.fmod(x, y)
    assert np.array_equal(bits(kernels(elem, 8)["fmod"](x, y)), bits(exact))


FE_UNDERFLOW = 0x10  # of x86


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flag has another number")
@pytest.mark.parametrize("elem", DTYPES)
@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid"])
def test_large_negative_exponents_do_not_underflow(name: str, elem: str) -> None:
    """An underflow takes some processors a hundred times as long: see docs/measurements.md."""
    libm = ctypes.CDLL(find_library("m"))
    far = np.tile(np.array([-math.inf, -1e9, -1e4, -4000.0], DTYPES[elem]), 16)
    for width in WIDTHS:
        function = kernels(elem, width)[name]
        libm.feclearexcept(FE_UNDERFLOW)
        got = function(far)
        assert not libm.fetestexcept(FE_UNDERFLOW), width
        assert not got.any()
