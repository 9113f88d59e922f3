"""Rows that begin at unaligned addresses, in Triton's interpreter; see test_row_parts.py."""

import pytest
import torch

from tests.backends.cpu.schedule.test_build_nest import buffer_lengths
from tests.support.kernels import Buffers, kernel, random_buffers, run_interpreter
from tests.support.tile_runner import run_tiles
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.schedule.choose_tiling import TilingLimits
from tofuse.backends.cuda.triton.emit import emit
from tofuse.ir.kernel import Kernel
from tofuse.ir.tile import GpuTarget, TileProgram

WHOLE = TilingLimits()
LOOP = TilingLimits(
    register_tile=64, register_row=64, half_row=64, loop_block=64, loop_block_beside_whole=64
)
SPLIT = TilingLimits(
    register_tile=64, register_row=64, half_row=64, loop_block=64, min_split=1, unaligned_row=64
)
LIMITS = {"whole": WHOLE, "loop": LOOP, "split": SPLIT}

SOFTMAX = """kernel k(x: in {dtype}, y: out {dtype}) over i0:5 i1:{n} {{
  v0 = load x[({n})*i0 + i1] : {register}
  v1 = reduce amax<i1> v0 : {register}
  v2 = sub v0 v1 of {register} : {register}
  v3 = exp v2 of {register} : {register}
  v4 = reduce sum<i1> v3 : {register}
  v5 = div v3 v4 of {register} : {register}
  store y[({n})*i0 + i1] v5 : {dtype}
}}"""
NORM = """kernel k(x: in {dtype}, w: in f32, y: out f32) over i0:5 i1:{n} {{
  v0 = load x[({n})*i0 + i1] : f32
  v1 = load w[i1] : f32
  v2 = mul v0 v0 of f32 : f32
  v3 = reduce sum<i1> v2 : f32
  v4 = add v3 1.0 of f32 : f32
  v5 = div v0 v4 of f32 : f32
  v6 = mul v5 v1 of f32 : f32
  store y[({n})*i0 + i1] v6 : f32
}}"""
SLICED = """kernel k(x: in f32, y: out f32) over i0:5 i1:{n} {{
  v0 = load x[({wide})*i0 + i1 + 3] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  store y[({n})*i0 + i1] v2 : f32
}}"""
POSITIONS = """kernel k(x: in {dtype}, p: out i64, a: out b1, s: out {dtype}) over i0:5 i1:{n} {{
  v0 = load x[({n})*i0 + i1] : {register}
  v1 = reduce argmax<i1> v0 at [i1] : i64
  v2 = gt v0 1 of {register} : b1
  v3 = reduce any<i1> v2 : b1
  v4 = reduce amin<i1> v0 : {register}
  store p[i0] v1 : i64
  store a[i0] v3 : b1
  store s[i0] v4 : {dtype}
}}"""
LOSS = """kernel k(x: in {dtype}, i: in i64, y: out f32) over i0:64 i1:{n} {{
  v0 = load x[({n})*i0 + i1] : f32
  v1 = reduce amax<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  v3 = exp v2 of f32 : f32
  v4 = reduce sum<i1> v3 : f32
  v5 = log v4 of f32 : f32
  v6 = load i[i0] : i64
  v7 = gather wrap x[({n})*i0] by v6 * 1 below {n} : f32
  v8 = sub v7 v1 of f32 : f32
  v9 = sub v5 v8 of f32 : f32
  v10 = reduce sum<i0> v9 : f32
  store y[0] v10 : f32
}}"""
COLUMNS = """kernel k(x: in f32, g: in f32, y: out f32, z: out f32) over i0:64 i1:{n} {{
  v0 = load x[({n})*i0 + i1] : f32
  v1 = load g[({n})*i0 + i1] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = reduce sum<i1> v2 : f32
  v4 = sub v1 v3 of f32 : f32
  v5 = reduce sum<i0> v2 : f32
  store y[({n})*i0 + i1] v4 : f32
  store z[i1] v5 : f32
}}"""
MASKED = """kernel k(m: in b1, x: in bf16, q: in i8, y: out bf16, b: out b1) over i0:5 i1:{n} {{
  v0 = load m[({n})*i0 + i1] : b1
  v1 = load x[({n})*i0 + i1] : f32
  v2 = where v0 v1 0.0 of f32 : f32
  v3 = load q[({n})*i0 + i1] : i8
  v4 = convert v3 of i8 : f32
  v5 = reduce sum<i1> v4 : f32
  v6 = add v2 v5 of f32 : f32
  v7 = gt v6 0.0 of f32 : b1
  store y[({n})*i0 + i1] v6 : bf16
  store b[({n})*i0 + i1] v7 : b1
}}"""
PADDED = """kernel k(x: in f32, y: out f32) over i0:5 i1:{n} {{
  v0 = in_range [i1] 0 {m} : b1
  v1 = load x[({m})*i0 + i1] if v0 : f32
  v2 = reduce sum<i1> v1 : f32
  v3 = sub v1 v2 of f32 : f32
  store y[({n})*i0 + i1] v3 : f32
}}"""
LONGEST = """kernel k(x: in {dtype}, y: out {dtype}) over i0:{n} {{
  v0 = load x[i0 + 3] : {dtype}
  v1 = reduce sum<i0> v0 : {dtype}
  store y[0] v1 : {dtype}
}}"""


def formatted(text: str, n: int, dtype: str = "f32") -> Kernel:
    register = "f32" if dtype in ("f16", "bf16") else dtype
    return kernel(text.format(n=n, m=n - 40, wide=n + 5, dtype=dtype, register=register))


def check(k: Kernel, program: TileProgram, offset: int = 0) -> None:
    """Compare with the reference interpreter; inputs lie at an offset between nan, or ones."""
    lengths = buffer_lengths(k, {})
    buffers = random_buffers(k, lengths, torch.Generator().manual_seed(5))
    if "i" in buffers:
        buffers["i"] = buffers["i"].abs()
    inputs = {b.name for b in k.buffers if b.role == "in"}
    surrounded = {n: _surrounded(t, offset) if n in inputs else t for n, t in buffers.items()}
    want = run_interpreter(k, buffers, {}, precise=True)
    got = run_tiles(program, surrounded, {})
    for name, t in got.items():
        tolerance = 2e-2 if t.dtype in (torch.bfloat16, torch.float16) else 2e-4
        torch.testing.assert_close(t, want[name], rtol=tolerance, atol=10 * tolerance)
    for name in inputs:
        assert torch.equal(surrounded[name], buffers[name]), f"{name} is written"


def _surrounded(t: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a tensor in the middle of memory that spoils results if it is read."""
    around = 64
    fill = float("nan") if t.dtype.is_floating_point else 1
    memory = torch.full((t.numel() + 2 * around + offset,), fill, dtype=t.dtype)
    found = memory[around + offset : around + offset + t.numel()]
    return found.copy_(t)


def is_divided(program: TileProgram) -> bool:
    return any(nest.alignment is not None for nest in program.nests)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("n", [1, 3, 17, 257, 511, 513, 1023, 2051])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_rows_of_odd_lengths(dtype: str, n: int, limits: str):
    text = SOFTMAX.replace("sub v0 v1", "sub v1 v0") if limits in ("loop", "split") else SOFTMAX
    k = formatted(text, n, dtype)
    program = build_tiles(k, GpuTarget(), LIMITS[limits])
    assert is_divided(program) == (n > 512)
    check(k, program)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("text", [NORM, SLICED, MASKED, PADDED, LOSS, COLUMNS], ids=len)
@pytest.mark.parametrize("n", [517, 1027])
def test_programs(text: str, n: int, limits: str):
    k = formatted(text, n)
    check(k, build_tiles(k, GpuTarget(4), LIMITS[limits]))


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i8", "u8", "i32", "i64"])
def test_reductions_of_each_type(dtype: str, limits: str):
    k = formatted(POSITIONS, 519, dtype)
    program = build_tiles(k, GpuTarget(), LIMITS[limits])
    assert is_divided(program)
    check(k, program)


@pytest.mark.parametrize("dtype", ["f64", "f32", "i64"])
def test_a_single_row_that_begins_inside_a_vector(dtype: str):
    k = formatted(LONGEST, 1001, dtype)
    program = build_tiles(k, GpuTarget(4), SPLIT)
    assert is_divided(program) and program.nests[0].tiling.splits > 1
    check(k, program)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_memory_that_begins_anywhere(offset: int):
    k = formatted(SOFTMAX, 1023, "bf16")
    check(k, build_tiles(k, GpuTarget()), offset)


def test_results_over_operands():
    """An element of an edge is read by all warps before one of them writes over it."""
    k = formatted(SOFTMAX, 1023)
    program = build_tiles(k, GpuTarget())
    text = emit(program)
    assert text.index("tl.debug_barrier()") < text.index("tl.store(y + (g0 * 1023 + g1e)")
    buffers: Buffers = {"x": torch.randn(5 * 1023), "y": torch.empty(5 * 1023)}
    want = run_tiles(program, buffers, {})
    got = run_tiles(program, buffers, {}, in_place=("x", "y"))
    assert torch.equal(got["y"], want["y"])


def test_rows_that_share_sums_of_columns_stay_whole():
    assert not is_divided(build_tiles(formatted(COLUMNS, 517), GpuTarget()))


def test_sizes_that_are_multiples_stay_whole():
    for text in (SOFTMAX, NORM, LOSS, MASKED):
        assert not is_divided(build_tiles(formatted(text, 1024, "bf16"), GpuTarget()))
