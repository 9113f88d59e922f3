"""Reductions over any axes and of every dtype, under many schedules, against the interpreter."""

import itertools
from collections.abc import Sequence

import pytest
import torch

from tests.support.kernels import (
    Buffers,
    kernel,
    random_tensor,
    run_interpreter,
    run_llvm,
    schedules,
)
from tests.support.numbers import TORCH_DTYPES, assert_same_bits
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.ir.affine import make_affine
from tofuse.ir.dims import contiguous_strides
from tofuse.ir.kernel import Kernel, iteration_axes
from tofuse.ir.schedule import Loop, Schedule
from tofuse.ir.types import DType
from tofuse.schedule.schedule_legality import Unschedulable

FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)
INTS = (DType.I64, DType.I32, DType.I16, DType.U8)
OPS = ("sum", "prod", "amax", "amin", "argmax", "argmin", "any", "all")
SHAPES = ((7, 13, 9), (1, 5, 1), (0, 3), (3, 0), (64, 1025))
CASES = [
    (shape, over)
    for shape in SHAPES
    for n in range(1, len(shape) + 1)
    for over in itertools.combinations(range(len(shape)), n)
    if any(shape[k] != 1 for k in over)
]


def reduction(
    shape: Sequence[int], over: Sequence[int], dtype: DType, ops: Sequence[str]
) -> Kernel:
    """Return a kernel with several reductions of one value."""
    axes = [k for k, n in enumerate(shape) if n != 1]
    over = [k for k in over if k in axes]
    kept = [k for k in axes if k not in over]
    register_type = dtype.opmath
    strides = contiguous_strides(tuple(shape))
    at = make_affine((f"i{k}", strides[k]) for k in axes)
    out = make_affine(
        (f"i{k}", s)
        for k, s in zip(kept, contiguous_strides(tuple(shape[k] for k in kept)), strict=True)
    )
    position = make_affine(
        (f"i{k}", s)
        for k, s in zip(over, contiguous_strides(tuple(shape[k] for k in over)), strict=True)
    )
    head, lines = [f"x: in {dtype.value}"], [f"v = load x[{at!r}] : {register_type.value}"]
    axes_text = " ".join(f"i{k}:{shape[k]}" for k in axes)
    lines.append(f"t = ne v 0 of {register_type.value} : b1")
    for k, op in enumerate(ops):
        arg = "t" if op in ("any", "all") else "v"
        to = {"a": DType.I64 if op.startswith("arg") else DType.BOOL}.get(op[0], register_type)
        to = register_type if op in ("amax", "amin") else to
        where = f" at [{position!r}]" if op.startswith("arg") else ""
        over_text = ",".join(f"i{a}" for a in over)
        lines.append(f"r{k} = reduce {op}<{over_text}> {arg}{where} : {to.value}")
        lines.append(f"store y{k}[{out!r}] r{k} : {to.value}")
        head.append(f"y{k}: out {to.value}")
    if dtype is DType.BOOL:
        lines[1] = "t = logical_or v False of b1 : b1"
    text = f"kernel k({', '.join(head)}) over {axes_text} {{\n" + "\n".join(lines) + "\n}"
    return kernel(text)


def buffers_of(k: Kernel, shape: Sequence[int], over: Sequence[int], x: torch.Tensor) -> Buffers:
    rest = 1
    for a, n in enumerate(shape):
        rest *= 1 if a in over else n
    outs = {b.name: torch.empty(rest, dtype=TORCH_DTYPES[b.dtype]) for b in k.buffers[1:]}
    return {"x": x, **outs}


def numbers(dtype: DType, length: int) -> torch.Tensor:
    """Return values close to one, with ties, so that products stay finite."""
    generator = torch.Generator().manual_seed(length)
    if not dtype.is_float:
        return random_tensor(length, TORCH_DTYPES[dtype], generator)
    signs = torch.randint(0, 2, (length,), generator=generator) * 2 - 1
    x = signs * (1 + torch.randint(-8, 9, (length,), generator=generator) / 64)
    return x.to(TORCH_DTYPES[dtype])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, DType.BOOL], ids=lambda d: d.value)
@pytest.mark.parametrize(("shape", "over"), CASES, ids=str)
def test_every_reduction(shape: tuple[int, ...], over: tuple[int, ...], dtype: DType):
    ops: tuple[str, ...] = OPS[2:] if dtype is DType.BOOL else OPS
    if any(shape[k] == 0 for k in over):
        ops = tuple(op for op in ops if not op.startswith("a") or op == "all")
    k = reduction(shape, over, dtype, ops)
    length = 1
    for n in shape:
        length *= n
    buffers = buffers_of(k, shape, over, numbers(dtype, length))
    want = run_interpreter(k, buffers, {}, precise=True)
    lanes = (16,) if length > 10_000 else (1, 8)
    for schedule in schedules(coalesce(k), lanes=lanes):
        got = run_llvm(coalesce(k), schedule, buffers, {}, 3)
        for name, t in want.items():
            check(ops[int(name[1:])], got[name], t, str(schedule))


def check(op: str, got: torch.Tensor, want: torch.Tensor, where: str) -> None:
    is_inexact = op in ("sum", "prod") and got.is_floating_point()
    rtol = (1e-11 if got.dtype is torch.float64 else 3e-5) if is_inexact else 0.0
    atol = (1e-11 if got.dtype is torch.float64 else 2e-4) if op == "sum" and is_inexact else 0.0
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{op} by {where}: {m}"
    )


SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda d: d.value)
def test_special_values_at_every_position(value: float, dtype: DType):
    """Rows of one value, and rows with one special value at each position."""
    width, kind = 37, TORCH_DTYPES[dtype]
    rows = [torch.full((width,), value, dtype=kind)]
    for position in range(width):
        for rest in (0.5, -2.0, float("-inf")):
            row = torch.full((width,), rest, dtype=kind)
            row[position] = row[(position + 20) % width] = value
            rows.append(row)
    x = torch.cat(rows)
    shape = (len(rows), width)
    k = reduction(shape, (1,), dtype, OPS)
    buffers = buffers_of(k, shape, (1,), x)
    want = run_interpreter(k, buffers, {})
    for schedule in schedules(k, "order i0 i1/8 i1; parallel 1; vector 4; unroll 1"):
        got = run_llvm(k, schedule, buffers, {}, 2)
        for name, t in want.items():
            check(OPS[int(name[1:])], got[name], t, str(schedule))
    whole = x.view(shape)
    assert torch.equal(want["y4"], whole.argmax(1)), "the interpreter differs from torch"
    assert torch.equal(want["y5"], whole.argmin(1)), "the interpreter differs from torch"


@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.value)
def test_integer_extrema(dtype: DType):
    info = torch.iinfo(TORCH_DTYPES[dtype])
    rows = [[info.min] * 33, [info.max] * 33, [info.min] + [0] * 31 + [info.max]]
    x = torch.tensor(rows, dtype=TORCH_DTYPES[dtype]).flatten()
    k = reduction((3, 33), (1,), dtype, OPS)
    buffers = buffers_of(k, (3, 33), (1,), x)
    want = run_interpreter(k, buffers, {})
    for schedule in schedules(k):
        got = run_llvm(k, schedule, buffers, {})
        for name, t in want.items():
            assert torch.equal(got[name], t), OPS[int(name[1:])]


UNUSUAL = [
    Schedule(tuple(loops), parallel, lanes, unroll)
    for loops in (
        (Loop("i0"), Loop("i1"), Loop("i2")),
        (Loop("i1"), Loop("i0"), Loop("i2")),
        (Loop("i2"), Loop("i0"), Loop("i1")),
        (Loop("i0"), Loop("i2"), Loop("i1")),
        (Loop("i2", 8), Loop("i0"), Loop("i1"), Loop("i2")),
        (Loop("i0"), Loop("i2", 8), Loop("i1"), Loop("i2")),
        (Loop("i1", 8), Loop("i0"), Loop("i2"), Loop("i1")),
        (Loop("i0"), Loop("i1"), Loop("i2", 8), Loop("i2")),
    )
    for parallel, lanes, unroll in ((0, 4, 2), (1, 4, 1), (2, 8, 1), (1, 1, 1), (2, 4, 4))
]


@pytest.mark.parametrize("over", [c[1] for c in CASES if len(c[0]) == 3 and 1 not in c[0]], ids=str)
def test_unusual_schedules(over: tuple[int, ...]):
    """Any loop order that the nest accepts gives the same result, argmax included."""
    shape = (7, 13, 19)
    k = reduction(shape, over, DType.F32, ("sum", "amax", "argmin"))
    _, runs = iteration_axes(k)
    assert all(len(axes) == 3 for s, axes in runs.items() if s is k.body[0])
    buffers = buffers_of(k, shape, over, numbers(DType.F32, 7 * 13 * 19))
    want = run_interpreter(k, buffers, {})
    accepted = 0
    for schedule in UNUSUAL:
        try:
            build_nest(k, schedule)
        except Unschedulable:
            continue
        accepted += 1
        got = run_llvm(k, schedule, buffers, {}, 3)
        for op, name in zip(("sum", "amax", "argmin"), want, strict=True):
            check(op, got[name], want[name], str(schedule))
    assert accepted >= 10


def test_sum_of_a_million_terms():
    """The error of a sum of a million times 0.1 is that of a tree, not of a running sum."""
    n = 1 << 20
    k = reduction((n,), (0,), DType.F32, ("sum",))
    buffers = {"x": torch.full((n,), 0.1), "y0": torch.empty(1)}
    exact = float(torch.tensor(0.1).double()) * n
    for schedule in schedules(k, lanes=(8, 16)):
        got = run_llvm(k, schedule, buffers, {}, 2)["y0"].item()
        assert abs(got - exact) / exact < 2e-6, schedule


def test_same_thread_count_gives_same_bits():
    """The same kernel on the same number of threads gives the same bits every time."""
    k = reduction((50, 333), (0,), DType.F32, ("sum",))
    x = torch.randn(50 * 333, generator=torch.Generator().manual_seed(0))
    buffers = buffers_of(k, (50, 333), (0,), x)
    for schedule in schedules(k, lanes=(16,)):
        first = run_llvm(k, schedule, buffers, {}, 3)["y0"]
        for _ in range(3):
            assert_same_bits(run_llvm(k, schedule, buffers, {}, 3)["y0"], first)
