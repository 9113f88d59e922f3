"""Product chains: sizes, layouts, dtypes, stages and row results, against the interpreter."""

from dataclasses import replace

import pytest
import torch

from tests.backends.cpu.llvm.matmul.test_blocked_kernel import AVX2, TARGET, assert_close, backend
from tests.support.kernels import kernel, run_interpreter, run_text
from tofuse.backends.cpu.llvm.emit import EmitOptions
from tofuse.backends.cpu.llvm.matmul.chain_kernel import emit_chain
from tofuse.backends.cpu.processors import PROCESSORS
from tofuse.ir.product_chain import ProductChain

pytestmark = pytest.mark.skipif(TARGET.lanes == 1, reason="the microkernel needs vectors")

ATTENTION = """
kernel k(q: in {t}, k: in {t}, v: in {t}, y: out {t}, l: out f32) over h:{h} i:{i} {axes} {{
  v0 = load q[({id})*h + ({d})*i + d] : f32
  v1 = load k[{k}] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = reduce sum<d> v2 : f32
  v4 = mul v3 0.125 of f32 : f32
  v5 = iota [i] : i64
  v6 = iota [j] : i64
  v7 = lt v5 v6 of i64 : b1
  v8 = where v7 -inf v4 of f32 : f32
  v9 = reduce amax<j> v8 : f32
  v10 = sub v8 v9 of f32 : f32
  v11 = exp v10 of f32 : f32
  v12 = reduce sum<j> v11 : f32
  v13 = div v11 v12 of f32 : f32
  v14 = round_bf16 v13 of f32 : f32
  v15 = load v[{v}] : f32
  v16 = mul {p} v15 of f32 : f32
  v17 = reduce sum<j> v16 : f32
  store y[({ic})*h + ({c})*i + c] v17 : {t}
  v18 = log v12 of f32 : f32
  v19 = add v18 v9 of f32 : f32
  store l[({i})*h + i] v19 : f32
}}
"""
LATE = """
kernel k(q: in f32, k: in f32, v: in f32, y: out f32) over i:{i} c:{c} d:{d} j:{j} {{
  v0 = load q[({d})*i + d] : f32
  v1 = mul v0 v0 of f32 : f32
  v2 = reduce sum<d> v1 : f32
  v3 = rsqrt v2 of f32 : f32
  v4 = mul v0 v3 of f32 : f32
  v5 = load k[({d})*j + d] : f32
  v6 = mul v5 v4 of f32 : f32
  v7 = reduce sum<d> v6 : f32
  v8 = exp v7 of f32 : f32
  v9 = reduce sum<j> v8 : f32
  v10 = load v[({c})*j + c] : f32
  v11 = mul v8 v10 of f32 : f32
  v12 = reduce sum<j> v11 : f32
  v13 = div v12 v9 of f32 : f32
  v14 = mul v13 v3 of f32 : f32
  store y[({c})*i + c] v14 : f32
}}
"""
MLP = """
kernel k(x: in f32, a: in f32, b: in f32, w: in f32, y: out f32) over i:{i} {axes} {{
  v0 = load x[({d})*i + d] : f32
  v1 = load a[({d})*j + d] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = reduce sum<d> v2 : f32
  v4 = tanh v3 of f32 : f32
  v5 = load b[({j})*c + j] : f32
  v6 = mul v4 v5 of f32 : f32
  v7 = reduce sum<j> v6 : f32
  v8 = tanh v7 of f32 : f32
  v9 = load w[({n})*c + n] : f32
  v10 = mul v8 v9 of f32 : f32
  v11 = reduce sum<c> v10 : f32
  store y[({n})*i + n] v11 : f32
}}
"""
NEAREST = """
kernel k(x: in f32, w: in f32, y: out i64) over i:{i} d:{d} j:{j} {{
  v0 = load x[({d})*i + d] : f32
  v1 = load w[({d})*j + d] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = reduce sum<d> v2 : f32
  v4 = neg v3 of f32 : f32
  v5 = reduce argmin<j> v4 at [j] : i64
  store y[i] v5 : i64
}}
"""
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def attention(h, i, j, d, c, t="f32", by_columns=False):
    return ATTENTION.format(
        **{"h": h, "i": i, "d": d, "c": c, "id": i * d, "ic": i * c, "t": t},
        axes=f"c:{c} d:{d} j:{j}",
        p="v13" if t == "f32" else "v14",
        k=f"({j * d})*h + ({j})*d + j" if by_columns else f"({j * d})*h + ({d})*j + d",
        v=f"({j * c})*h + ({j})*c + j" if by_columns else f"({j * c})*h + ({c})*j + c",
    )


def attention_buffers(h, i, j, d, c, t="f32"):
    sizes = {"q": h * i * d, "k": h * j * d, "v": h * j * c, "y": h * i * c}
    return {**{n: torch.randn(s).to(DTYPES[t]) for n, s in sizes.items()}, "l": torch.empty(h * i)}


def chain(text, target=TARGET) -> ProductChain:
    found = backend(target).chain(kernel(text))
    assert found is not None
    return found


def assert_like_interpreter(text, buffers, sizes=None, target=TARGET, tolerance=1e-5):
    built = chain(text, target)
    expected = run_interpreter(kernel(text), buffers, sizes or {}, precise=True)
    options = EmitOptions(contract=True, avx512=target.avx512)
    for threads in (1, 3):
        code = emit_chain(built, options)
        found = run_text(code, built.kernel, built.block_bytes, buffers, sizes or {}, threads)
        assert_close(found, expected, tolerance)


@pytest.mark.broad(3)
@pytest.mark.parametrize("heads", [1, 5])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 70), (17, 33), (40, 40), (130, 300)])
@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (7, 5), (16, 64), (65, 33)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("target", [TARGET, AVX2], ids=["host", "avx2"])
def test_attention(heads, rows, keys, depth, columns, dtype, by_columns, target):
    sizes = (heads, rows, keys, depth, columns)
    text = attention(*sizes, dtype, by_columns)
    tolerance = 1e-5 if dtype == "f32" else 1e-2
    buffers = attention_buffers(*sizes, dtype)
    assert_like_interpreter(text, buffers, target=target, tolerance=tolerance)


@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("heads", [0, 1, 4])
def test_rows_and_heads_that_vary(rows, heads):
    text = ATTENTION.format(
        **{"h": "s0", "i": "s1", "d": 20, "c": 30, "id": "20*s1", "ic": "30*s1"},
        **{"t": "f32", "p": "v13", "k": "(900)*h + (20)*j + d", "v": "(1350)*h + (30)*j + c"},
        axes="c:30 d:20 j:45 sizes s0=2 s1=64",
    )
    buffers = attention_buffers(heads, rows, 45, 20, 30)
    assert_like_interpreter(text, buffers, {"s0": heads, "s1": rows})


@pytest.mark.parametrize("rows", [1, 19, 64])
def test_numbers_of_rows_are_read_by_later_stages(rows):
    text = LATE.format(i=rows, j=50, d=12, c=20)
    buffers = {"q": rows * 12, "k": 50 * 12, "v": 50 * 20, "y": rows * 20}
    assert_like_interpreter(text, {n: torch.randn(s) for n, s in buffers.items()})
    names = {name for name in chain(text).offsets if name.startswith("rows.")}
    assert names == {"rows.v3", "rows.v9"} or names == {"rows.v2", "rows.v9"}


@pytest.mark.parametrize("rows", [1, 100])
def test_three_products(rows):
    text = MLP.format(i=rows, d=10, j=40, n=3, axes="c:33 d:10 j:40 n:3")
    buffers = {"x": rows * 10, "a": 400, "b": 33 * 40, "w": 99, "y": rows * 3}
    assert_like_interpreter(text, {n: torch.randn(s) for n, s in buffers.items()})
    assert len(chain(text).stages) == 4


@pytest.mark.parametrize("rows", [1, 100])
def test_a_reduction_of_one_product(rows):
    text = NEAREST.format(i=rows, d=10, j=70)
    buffers = {"x": torch.randn(rows * 10), "w": torch.randn(700)}
    assert_like_interpreter(text, {**buffers, "y": torch.empty(rows, dtype=torch.int64)})


def test_right_factors_are_packed_once_for_all_rows():
    """A group of heads with the same keys does not pack them again."""
    text = ATTENTION.format(
        **{"h": 6, "i": 20, "d": 8, "c": 9, "id": 160, "ic": 180, "t": "f32", "p": "v13"},
        axes="c:9 d:8 j:33",
        k="(8)*j + d",
        v="(297)*h + (9)*j + c",
    )
    assert [p.around for p in chain(text).products] == [(), ("h",)]
    sizes = {"q": 960, "k": 264, "v": 6 * 297, "y": 1080, "l": 120}
    assert_like_interpreter(text, {n: torch.randn(s) for n, s in sizes.items()})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v17 = reduce sum<j> v16", "v17 = reduce sum<j> v15"),  # a result without rows
        ("v12 = reduce sum<j> v11", "v12 = reduce sum<i> v11"),  # a reduction of rows
        ("j:50", "j:0"),
    ],
)
def test_other_kernels_are_no_chains(old, new):
    text = attention(1, 40, 50, 16, 16)
    assert old in text
    assert backend().chain(kernel(text.replace(old, new))) is None


@pytest.mark.parametrize(
    ("field", "instruction"), [("bf16_dot", "dpbf16ps"), ("bf16_tiles", "tdpbf16ps")]
)
def test_bfloat16_instructions(field, instruction):
    target = replace(PROCESSORS["avx512"].target(2), **{field: True})
    built = chain(attention(2, 64, 64, 64, 64, "bf16"), target)
    assert instruction in emit_chain(built, EmitOptions(avx512=True))
