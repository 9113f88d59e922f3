"""Blocked contractions: sizes, layouts, axes and neighbours, against float64."""

from dataclasses import replace

import pytest
import torch

from tests.support.kernels import kernel, run_interpreter, run_text
from tofuse.backends.cpu.backend import CpuBackend
from tofuse.backends.cpu.llvm.emit import EmitOptions
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cpu.llvm.machine_code import host_features
from tofuse.backends.cpu.llvm.matmul.blocked_kernel import emit_blocked
from tofuse.backends.cpu.processors import PROCESSORS
from tofuse.backends.cpu.schedule.block_sizes import block_variants, blocked_schedules
from tofuse.cost.machine import default_machine
from tofuse.driver.pipeline import cost_oracle
from tofuse.ir.blocked import BlockedContraction
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.types import DType

TARGET = host_target(2)
AVX2 = PROCESSORS["avx2"].target(2)
pytestmark = pytest.mark.skipif(TARGET.lanes == 1, reason="the microkernel needs vectors")

LINEAR = """
kernel k(w: in f32, s: in f32, x: in f32, y: out f32) over m:{m} n:{n} k:{k} {{
  v0 = load w[{w}] : f32
  v1 = load s[n] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = load x[{x}] : f32
  v4 = mul v3 v2 of f32 : f32
  v5 = reduce sum<k> v4 : f32
  v6 = tanh v5 of f32 : f32
  v7 = mul v6 v1 of f32 : f32
  store y[{y}] v7 : f32
}}
"""
GROUPED = """
kernel k(w: in u8, s: in f32, x: in f32, y: out f32) over m:{m} n:{n} g:{g} j:{j} p:2 {{
  v0 = load w[({gj})*n + ({j})*g + j] : u8
  v1 = iota [(4)*p] : i64
  v2 = convert v1 of i64 : u8
  v3 = shift_right v0 v2 of u8 : u8
  v4 = bitwise_and v3 15 of u8 : u8
  v5 = convert v4 of u8 : f32
  v6 = load s[({g})*n + g] : f32
  v7 = mul v5 v6 of f32 : f32
  v8 = load x[({k})*m + ({j2})*g + (2)*j + p] : f32
  v9 = mul v8 v7 of f32 : f32
  v10 = reduce sum<g,j,p> v9 : f32
  store y[({n})*m + n] v10 : f32
}}
"""
GATED = """
kernel k(a: in bf16, b: in bf16, x: in bf16, y: out bf16) over h:{h} m:{m} n:{n} k:{k} {{
  v0 = load a[({nk})*h + ({k})*n + k] : f32
  v1 = load b[({k})*n + k] : f32
  v2 = load x[({mk})*h + ({k})*m + k] : f32
  v3 = mul v2 v0 of f32 : f32
  v4 = mul v2 v1 of f32 : f32
  v5 = reduce sum<k> v3 : f32
  v6 = reduce sum<k> v4 : f32
  v7 = sigmoid v5 of f32 : f32
  v8 = mul v7 v6 of f32 : f32
  v9 = round_bf16 v8 of f32 : f32
  store y[({mn})*h + ({n})*m + n] v9 : bf16
}}
"""
GATHERED = """
kernel k(i: in i64, w: in f32, x: in f32, y: out f32) over m:{m} n:{n} k:{k} {{
  v0 = load i[n] : i64
  v1 = gather w[k] by v0 * {k} below 7 : f32
  v2 = load x[({k})*m + k] : f32
  v3 = mul v2 v1 of f32 : f32
  v4 = reduce sum<k> v3 : f32
  store y[({n})*m + n] v4 : f32
}}
"""


def backend(target=TARGET) -> CpuBackend:
    made = cost_oracle(target, default_machine(2, target.lanes)).backend("cpu")
    assert isinstance(made, CpuBackend)
    return made


def blocked(text: str, target=TARGET) -> BlockedContraction:
    found = backend(target).blocks(kernel(text))
    assert found is not None
    return found


def run(b: BlockedContraction, buffers, sizes=None, threads=1, contract=True):
    is_avx512 = b.schedule.micro_columns == 32
    text = emit_blocked(b, EmitOptions(contract=contract, avx512=is_avx512))
    return run_text(text, b.kernel, b.block_bytes, buffers, sizes or {}, threads)


def assert_like_interpreter(text: str, buffers, sizes=None, target=TARGET, tolerance=1e-5):
    expected = run_interpreter(kernel(text), buffers, sizes or {}, precise=True)
    for threads in (1, 3):
        assert_close(run(blocked(text, target), buffers, sizes, threads), expected, tolerance)


def assert_close(found, expected, tolerance=1e-5):
    for name, t in expected.items():
        largest = float(t.double().abs().max()) if t.numel() else 0.0
        margin = {"rtol": tolerance, "atol": tolerance * largest}
        torch.testing.assert_close(found[name].double(), t.double(), **margin)


@pytest.mark.broad(4)
@pytest.mark.parametrize(
    ("rows", "columns"), [(16, 32), (17, 1), (33, 40), (35, 33), (61, 70), (530, 97)]
)
@pytest.mark.parametrize("depth", [1, 15, 16, 257, 700])
@pytest.mark.parametrize("layout", ["kn", "nk", "xt", "yt"])
@pytest.mark.parametrize("target", [TARGET, AVX2], ids=["host", "avx2"])
def test_layouts(rows, columns, depth, layout, target):
    m, n, k = rows, columns, depth
    text = LINEAR.format(
        **{"m": m, "n": n, "k": k},
        w=f"({n})*k + n" if layout == "kn" else f"({k})*n + k",
        x=f"({m})*k + m" if layout == "xt" else f"({k})*m + k",
        y=f"({m})*n + m" if layout == "yt" else f"({n})*m + n",
    )
    buffers = {"w": torch.randn(n * k), "s": torch.rand(n), "x": torch.randn(m * k) / k**0.5}
    least = 33 if target.avx512 and layout in ("nk", "yt") and depth > 1 else 16
    if min(rows, columns) < least:
        assert backend(target).blocks(kernel(text)) is None
        return
    assert_like_interpreter(text, {**buffers, "y": torch.empty(m * n)}, target=target)


@pytest.mark.parametrize(("groups", "half"), [(1, 16), (5, 16), (40, 16), (3, 150), (2, 400)])
@pytest.mark.parametrize("target", [TARGET, AVX2], ids=["host", "avx2"])
def test_depth_of_several_axes(groups, half, target):
    m, n, depth = 37, 45, 2 * groups * half
    sizes = {"k": depth, "g": groups, "j": half, "gj": groups * half, "j2": 2 * half}
    text = GROUPED.format(m=m, n=n, **sizes)
    buffers = {
        "w": torch.randint(0, 256, (n * depth // 2,), dtype=torch.uint8),
        "s": torch.rand(n * groups),
        "x": torch.randn(m * depth),
        "y": torch.empty(m * n),
    }
    assert_like_interpreter(text, buffers, target=target)


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 63, 513, 1500])
def test_several_products_of_a_batch(depth, dot):
    if dot and "+avx512bf16" not in host_features():
        pytest.skip("the processor has no products of bfloat16")
    h, m, n, k = 3, 39, 50, depth
    text = GATED.format(h=h, m=m, n=n, k=k, nk=n * k, mk=m * k, mn=m * n)
    target = replace(TARGET, bf16_dot=dot)
    assert blocked(text, target).schedule.microkernel.dtype is (DType.BF16 if dot else DType.F32)
    a, b, x = (torch.randn(size).bfloat16() for size in (h * n * k, n * k, h * m * k))
    buffers = {"a": a, "b": b, "x": x / k**0.5, "y": torch.empty(h * m * n).bfloat16()}
    assert_like_interpreter(text, buffers, target=target, tolerance=1e-2)


@pytest.mark.skipif(not TARGET.bf16_dot, reason="the processor has no products of bfloat16")
def test_what_is_rounded_before_a_factor_may_be_subnormal():
    text = GATED.format(h=1, m=20, n=40, k=64, nk=0, mk=0, mn=0).replace(
        "  v1 = load b",
        "  t0 = mul v0 1e-39 of f32 : f32\n  t1 = round_bf16 t0 of f32 : f32\n"
        "  t2 = mul t1 1e37 of f32 : f32\n  t3 = round_bf16 t2 of f32 : f32\n  v1 = load b",
    )
    text = text.replace("v3 = mul v2 v0", "v3 = mul v2 t3")
    assert blocked(text).schedule.microkernel.dtype is DType.BF16
    a, b, x = (torch.randn(size * 64).bfloat16() for size in (40, 40, 20))
    buffers = {"a": a, "b": b, "x": x, "y": torch.empty(800).bfloat16()}
    assert_like_interpreter(text, buffers, tolerance=1e-2)


@pytest.mark.parametrize("target", [TARGET, AVX2], ids=["host", "avx2"])
@pytest.mark.parametrize("size", [(40, 100, 700), (520, 33, 30), (17, 530, 1100)])
def test_variants_compute_the_same(size, target):
    """Either factor on the left, other tiles, other depths."""
    m, n, k = size
    text = LINEAR.format(m=m, n=n, k=k, w=f"({k})*n + k", x=f"({m})*k + m", y=f"({n})*m + n")
    buffers = {"w": torch.randn(n * k), "s": torch.rand(n), "x": torch.randn(m * k) / k**0.5}
    buffers |= {"y": torch.empty(m * n)}
    expected = run_interpreter(kernel(text), buffers, {}, precise=True)
    made, chosen = backend(target), blocked(text, target)
    others = made.built_blocks(
        chosen.kernel, block_variants(chosen.kernel, chosen.schedule, target)
    )
    assert any(b.schedule.rows != chosen.schedule.rows for b in others)
    assert len({b.schedule for b in (chosen, *others)}) == len(others) + 1 > 3
    for b in others:
        assert_close(run(b, buffers, threads=2), expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_factor_with_fewer_lines_is_transposed(dtype):
    """A transposition costs little then; the other factor is packed as it is stored."""
    text = f"""
kernel k(w: in {dtype}, x: in {dtype}, y: out f32) over m:64 n:4096 k:4096 {{
  v0 = load w[(4096)*n + k] : f32
  v3 = load x[(4096)*m + k] : f32
  v4 = mul v3 v0 of f32 : f32
  v5 = reduce sum<k> v4 : f32
  store y[(4096)*m + n] v5 : f32
}}
"""
    schedule = blocked(text).schedule
    assert (schedule.rows, schedule.columns) == ("n", "m")
    assert schedule.depth == 2048


def test_symbolic_rows_and_columns():
    text = LINEAR.format(m="s0", n="s1", k=40, w="(40)*n + k", x="(40)*m + k", y="(s1)*m + n")
    text = text.replace("k:40 {", "k:40 sizes s0=64 s1=64 {")
    for m, n in ((1, 1), (64, 64), (77, 600), (1030, 3)):
        w, s, x = torch.randn(n * 40), torch.rand(n), torch.randn(m * 40)
        buffers = {"w": w, "s": s, "x": x, "y": torch.empty(m * n)}
        assert_like_interpreter(text, buffers, {"s0": m, "s1": n})


def test_indices_are_checked():
    text = GATHERED.format(m=20, n=40, k=30)
    w, x, y = torch.randn(7 * 30), torch.randn(20 * 30), torch.empty(20 * 40)
    indices = torch.randint(0, 7, (40,))
    assert_like_interpreter(text, {"i": indices, "w": w, "x": x, "y": y})
    indices[33] = 7
    with pytest.raises(IndexError):
        run(blocked(text), {"i": indices, "w": w, "x": x, "y": y}, threads=2)


def test_special_values():
    text = LINEAR.format(m=36, n=40, k=30, w="(30)*n + k", x="(30)*m + k", y="(40)*m + n")
    text = text.replace("tanh", "abs")
    for special in (float("inf"), float("nan"), -0.0, 1e-40, 3e38):
        w, s, x = torch.randn(40, 30), torch.rand(40), torch.randn(36, 30)
        w[3, 29], x[19, 0] = special, special
        y = run(
            blocked(text), {"w": w.view(-1), "s": s, "x": x.view(-1), "y": torch.empty(36 * 40)}
        )
        expected = (x @ (w * s[:, None]).T).abs() * s
        torch.testing.assert_close(y["y"].view(36, 40), expected, equal_nan=True)


def test_products_are_not_fused_with_sums_if_eager_rounds_both():
    """One step of depth, so that the order of the sum does not matter."""
    text = LINEAR.format(m=36, n=40, k=2, w="(2)*n + k", x="(2)*m + k", y="(40)*m + n")
    text = text.replace("tanh", "abs")
    w, s, x = torch.randn(40, 2), torch.rand(40), torch.randn(36, 2)
    buffers = {"w": w.view(-1), "s": s, "x": x.view(-1), "y": torch.empty(36 * 40)}
    found = run(blocked(text), buffers, contract=False)["y"].view(36, 40)
    terms = x[:, None] * (w * s[:, None])
    assert torch.equal(found, (terms[..., 0] + terms[..., 1]).abs() * s)


def test_what_is_no_product_of_blocks():
    """A factor that needs a sum, a sum of other axes, and a store of a factor."""
    text = LINEAR.format(m=64, n=64, k=64, w="(64)*n + k", x="(64)*m + k", y="(64)*m + n")
    normalized = text.replace("v2 = mul v0 v1", "r = reduce sum<k> v0 : f32\n  v2 = mul v0 r")
    stored = text.replace("v3 = load", "store w[(64)*n + k] v2 : f32\n  v3 = load")
    reduced = text.replace("  store y", "  r = reduce sum<n> v7 : f32\n  store y").replace(
        "store y[(64)*m + n] v7", "store y[m] r"
    )
    assert backend().blocks(parse_kernel(text)) is not None
    for other in (normalized, stored, reduced):
        assert backend().blocks(parse_kernel(other)) is None


@pytest.mark.parametrize("lines", [768, 1100, 1536, 2600, 5000])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_few_tiles_are_as_many_for_each_thread(lines, threads):
    text = LINEAR.format(m=64, n=lines, k=64, w="(64)*n + k", x="(64)*m + k", y=f"({lines})*m + n")
    target = replace(TARGET, threads=threads)
    for schedule in blocked_schedules(kernel(text), target):
        extents = {"m": 64, "n": lines}
        down = -(-extents[schedule.rows] // schedule.tile_rows)
        tiles = down * -(-extents[schedule.columns] // schedule.tile_columns)
        assert schedule.rows == "m" or tiles % threads == 0 or tiles >= 4 * threads
        if down > 1:
            rest = extents[schedule.rows] - (down - 1) * schedule.tile_rows
            assert rest > 0.5 * schedule.tile_rows or tiles >= 4 * threads
