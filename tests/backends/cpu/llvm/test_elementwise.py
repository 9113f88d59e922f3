"""Every elementwise op on every dtype and vector width, against the reference interpreter."""

import itertools
import math

import pytest
import torch

from tests.support.kernels import kernel, run_interpreter, run_llvm
from tests.support.numbers import TORCH_DTYPES, assert_same_bits
from tofuse.ir.schedule import Loop, Schedule
from tofuse.ir.types import DType
from tofuse.ops.table import OPS, PREDICATES, TRANSCENDENTAL, Pattern

ELEMENTWISE = [n for n, row in OPS.items() if row.pattern is Pattern.ELEMENTWISE]
BITS = {n for n in ELEMENTWISE if n.startswith(("bitwise", "shift"))}
DIVISIONS = {"truncdiv", "floordiv", "remainder", "fmod"}
QUOTIENTS = {"fmod", "remainder"}
FLOAT_ONLY = TRANSCENDENTAL | {
    "div",
    "copysign",
    "nextafter",
    "floor",
    "ceil",
    "round",
    "trunc",
    "isnan",
    "isinf",
}
NOT_BOOL = FLOAT_ONLY | DIVISIONS | {"shift_left", "shift_right", "add", "sub", "mul", "neg", "abs"}
LANES = (1, 4, 8, 16)
FLOATS, INTS = (DType.F32, DType.F64), (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)
ALL = (*FLOATS, DType.F16, DType.BF16, *INTS, DType.BOOL)


def ops_of(dtype: DType) -> list[str]:
    skipped = BITS if dtype.is_float else FLOAT_ONLY if dtype.is_int else NOT_BOOL
    return [n for n in ELEMENTWISE if n not in skipped and n != "convert"]


def special_values(dtype: DType) -> torch.Tensor:
    kind = TORCH_DTYPES[dtype]
    if dtype is DType.BOOL:
        return torch.tensor([True, False])
    if dtype.is_int:
        info = torch.iinfo(kind)
        candidates = {0, 1, 2, 3, 7, 31, 63, 100, -1, -2, -7, info.max, info.max - 1, info.min}
        return torch.tensor(sorted(n for n in candidates if info.min <= n <= info.max), dtype=kind)
    f = torch.finfo(kind)
    magnitudes = [0.0, f.smallest_normal / 8, f.tiny, 1e-3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.25, 1e4]
    magnitudes += [f.max, float("inf")]
    numbers = [*magnitudes, *(-x for x in magnitudes), float("nan")]
    return torch.tensor(numbers, dtype=torch.float64).to(kind)


def pairs(dtype: DType) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all pairs of special values, plus one more so that the number is odd."""
    values = special_values(dtype)
    x, y = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    more = 1 - len(x) % 2
    return torch.cat([x, x[:more]]), torch.cat([y, y[:more]])


def second_operand(op: str, dtype: DType) -> str:
    """Return the second operand: integers are divided by constants other than 0 and -1."""
    if op in DIVISIONS and dtype.is_int:
        return "7" if dtype is DType.U8 else "-7"
    return "y"


def schedule(lanes: int, unroll: int) -> Schedule:
    return Schedule((Loop("i0", 128), Loop("i0")), 1, lanes, unroll)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, DType.BOOL], ids=lambda d: d.value)
def test_every_op(dtype: DType, lanes: int):
    ops, (x, y) = ops_of(dtype), pairs(dtype)
    c = torch.arange(len(x)) % 3 != 0
    lines = [
        f"kernel k(bx: in {dtype.value}, by: in {dtype.value}, bc: in b1, "
        + ", ".join(f"out{k}: out {result(op, dtype).value}" for k, op in enumerate(ops))
        + f") over i0:{len(x)} {{",
        f"x = load bx[i0] : {dtype.value}",
        f"y = load by[i0] : {dtype.value}",
        "c = load bc[i0] : b1",
    ]
    for k, op in enumerate(ops):
        args = {1: "x", 2: f"x {second_operand(op, dtype)}", 3: "c x y"}[OPS[op].arity]
        lines.append(f"v{k} = {op} {args} of {dtype.value} : {result(op, dtype).value}")
        lines.append(f"store out{k}[i0] v{k} : {result(op, dtype).value}")
    k1 = kernel("\n".join([*lines, "}"]))
    buffers = {"bx": x, "by": y, "bc": c} | {
        f"out{k}": torch.empty(len(x), dtype=TORCH_DTYPES[result(op, dtype)])
        for k, op in enumerate(ops)
    }
    want = run_interpreter(k1, buffers, {})
    got = run_llvm(k1, schedule(lanes, 2), buffers, {}, threads=2)
    for k, op in enumerate(ops):
        # torch's fmod is nan if the quotient overflows; C's is not
        comparable = (
            (x / y).isfinite() | ~x.isfinite() | (y == 0) if op in QUOTIENTS else slice(None)
        )
        if dtype.is_int:
            comparable = slice(None)
        expected = exact_sqrt(x) if op == "sqrt" else want[f"out{k}"]
        compare(op, got[f"out{k}"][comparable], expected[comparable])


def exact_sqrt(x: torch.Tensor) -> torch.Tensor:
    """Return correctly rounded square roots.

    PyTorch's are off by one ulp on processors for which its vector library has code of its own.
    """
    roots = [math.sqrt(v) if v >= 0 else math.nan for v in x.tolist()]
    return torch.tensor(roots, dtype=torch.float64).to(x.dtype)


def result(op: str, dtype: DType) -> DType:
    return DType.BOOL if op in PREDICATES else dtype


def compare(op: str, got: torch.Tensor, want: torch.Tensor) -> None:
    try:
        if op in TRANSCENDENTAL - {"sqrt", "reciprocal"}:  # test_vector_math bounds their errors
            torch.testing.assert_close(got, want, equal_nan=True)
        elif op in ("maximum", "minimum") and got.is_floating_point():
            torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=0)
        else:
            assert_same_bits(got, want)
    except AssertionError as e:
        raise AssertionError(f"{op}: {e}") from e


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", ALL, ids=lambda d: d.value)
def test_every_conversion(source: DType, lanes: int):
    """From memory to registers, to every other dtype, and back to memory."""
    x, targets = special_values(source), ALL
    if source.is_float:
        beyond = [n for k in (7, 8, 15, 16, 31, 32, 52, 63) for n in (2.0**k, 2.0**k + 5)]
        x = torch.cat([x, torch.tensor([*beyond, *(-n for n in beyond)]).to(x.dtype)])
    register_type = source.opmath
    outs = [(f"out{k}", d) for k, d in enumerate(targets)]
    head = ", ".join(f"{name}: out {d.value}" for name, d in outs)
    lines = [
        f"kernel k(bx: in {source.value}, {head}) over i0:{len(x)} {{",
        f"x = load bx[i0] : {register_type.value}",
    ]
    for k, (name, d) in enumerate(outs):
        to, value = d.opmath, f"v{k}"
        if d is DType.BOOL:
            lines.append(f"{value} = ne x 0 of {register_type.value} : b1")
        elif to is register_type:
            value = "x"
        else:
            lines.append(f"{value} = convert x of {register_type.value} : {to.value}")
        lines.append(f"store {name}[i0] {value} : {d.value}")
    k1 = kernel("\n".join([*lines, "}"]))
    buffers = {"bx": x} | {n: torch.empty(len(x), dtype=TORCH_DTYPES[d]) for n, d in outs}
    want = run_interpreter(k1, buffers, {})
    got = run_llvm(k1, schedule(lanes, 2), buffers, {})
    for name, d in outs:
        try:
            assert_same_bits(got[name], want[name])
        except AssertionError as e:
            raise AssertionError(f"{source.value} -> {d.value}: {e}") from e


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda d: d.value)
def test_half_precision_round_trip(dtype: DType):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(TORCH_DTYPES[dtype])
    k = kernel(
        f"kernel k(x: in {dtype.value}, y: out {dtype.value}) over i0:65536 {{\n"
        f"v = load x[i0] : f32\nstore y[i0] v : {dtype.value}\n}}"
    )
    got = run_llvm(k, schedule(16, 4), {"x": every, "y": torch.empty_like(every)}, {})
    assert_same_bits(got["y"], every)


@pytest.mark.parametrize("op", ["round_bf16", "round_f16"])
def test_rounding_to_half_precision(op: str):
    """Ties to even, overflow to infinity, subnormals: around every half-precision value."""
    half = torch.bfloat16 if op == "round_bf16" else torch.float16
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(half).float()
    bits = every.view(torch.int32)
    ties = bits + (1 << (15 if half is torch.bfloat16 else 12))
    x = torch.cat([t.view(torch.float32) for t in (ties - 1, ties, ties + 1)])
    k = kernel(
        f"kernel k(x: in f32, y: out f32) over i0:{len(x)} {{\n"
        f"v = load x[i0] : f32\nw = {op} v of f32 : f32\nstore y[i0] w : f32\n}}"
    )
    buffers = {"x": x, "y": torch.empty_like(x)}
    assert_same_bits(
        run_llvm(k, schedule(16, 2), buffers, {})["y"], run_interpreter(k, buffers, {})["y"]
    )


@pytest.mark.parametrize("lanes", LANES)
def test_constant_operands(lanes: int):
    """A constant may be any operand, including nan, -0.0 and sizes."""
    ops = ("add", "sub", "maximum", "minimum", "lt", "ne", "copysign", "pow")
    numbers = ("-0.0", "inf", "nan", "2", "s0", "-3.5")
    lines, k, outs = [], 0, []
    for op, number in itertools.product(ops, numbers):
        for args in (f"x {number}", f"{number} x"):
            dtype = "b1" if op in PREDICATES else "f32"
            lines += [f"v{k} = {op} {args} of f32 : {dtype}", f"store out{k}[i0] v{k} : {dtype}"]
            outs.append((f"out{k}", f"{op} {args}", dtype))
            k += 1
    x = special_values(DType.F32)
    head = ", ".join(f"{name}: out {dtype}" for name, _, dtype in outs)
    k1 = kernel(
        "\n".join(
            [
                f"kernel k(bx: in f32, {head}) over i0:{len(x)} sizes s0 {{",
                "x = load bx[i0] : f32",
                *lines,
                "}",
            ]
        )
    )
    buffers = {"bx": x} | {
        name: torch.empty(len(x), dtype=torch.bool if dtype == "b1" else torch.float32)
        for name, _, dtype in outs
    }
    want = run_interpreter(k1, buffers, {"s0": 5})
    got = run_llvm(k1, schedule(lanes, 1), buffers, {"s0": 5})
    for name, what, _ in outs:
        compare(what.split()[0], got[name], want[name])
