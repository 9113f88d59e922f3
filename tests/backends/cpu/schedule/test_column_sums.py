"""Sums of columns: any number of rows and columns, any reduction, factors that serve rows."""

import pytest
import torch

import tofuse
from tests.support.kernels import kernel, run_llvm
from tofuse.backends.cpu.llvm import loop_emitter
from tofuse.backends.cpu.llvm.unroll_and_jam import can_copy
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.cost.thresholds import COLUMN_SUM_ROWS_AT_ONCE
from tofuse.ir.parse_schedule import parse_schedule
from tofuse.ir.schedule import Target

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
REDUCTIONS = {
    "sum": lambda x: x.sum(0),
    "sum of products": lambda x: (x * x + 1).sum(0),
    "two sums": lambda x: (x.sum(0), (x * x).sum(0)),
    "amax and amin": lambda x: (x.amax(0), x.amin(0)),
    "any and all": lambda x: ((x > 2).any(0), (x > -3).all(0)),
    "prod": lambda x: (x / 2).prod(0),
    "argmax": lambda x: (x.argmax(0), x.sum(0)),
}


@pytest.mark.broad(6)
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 63, 66, 131])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_row_counts(name, rows):
    for columns in (3, 16, 101):
        torch._dynamo.reset()
        x = torch.randn(rows, columns, dtype=torch.float64)
        ours, eager = tofuse.compile(REDUCTIONS[name], dynamic=False)(x), REDUCTIONS[name](x)
        torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12)


def test_symbolic_row_count():
    compiled = tofuse.compile(lambda x: (x * 2).sum(0), dynamic=True)
    for rows in (9, 64, 129, 200):
        x = torch.randn(rows, 40, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), (x * 2).sum(0))


def test_nan_in_any_row():
    for row in range(40):
        x = torch.randn(40, 20)
        x[row, 7] = float("nan")
        largest = tofuse.compile(lambda x: x.amax(0), dynamic=False)(x)
        assert torch.equal(largest.isnan(), torch.arange(20) == 7)


PRODUCT = """
kernel k(w: in f32, x: in f32, s: in f32, y: out f32) over m:{m} n:{n} g:{g} k:{k} {{
  v0 = load w[({k}*{n})*g + ({n})*k + n] : f32
  v1 = load s[({n})*g + n] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = load x[({g}*{k})*m + ({k})*g + k] : f32
  v4 = mul v3 v2 of f32 : f32
  v5 = reduce {op}<g,k> v4 : f32
  store y[({n})*m + n] v5 : f32
}}
"""


def product(op: str, m: int, n: int, g: int, k: int):
    """Return a product of m rows and n columns whose depth is g groups of k."""
    text = PRODUCT.format(op=op, m=m, n=n, g=g, k=k)
    for a, b in ((k, n), (g, k)):
        text = text.replace(f"({a}*{b})", f"({a * b})")
    return kernel(text)


@pytest.mark.parametrize("op", ["sum", "amax"])
@pytest.mark.parametrize(
    ("m", "n", "g", "k"), [(1, 40, 3, 33), (3, 100, 2, 20), (5, 17, 1, 65), (8, 64, 4, 8)]
)
def test_rows_and_depth_at_once(op, m, n, g, k, monkeypatch):
    """Several iterations of both loops around the vector loop run at the same time.

    Not of rows around the depth, if the sums have stages: loops inside would fold one row's only.
    """
    asked: list[tuple[str, bool]] = []

    def recorded(node, nest, reductions, **options):
        is_copied = can_copy(node, nest, reductions, **options)
        if reductions.in_scratch:
            asked.append((node.loop.axis, is_copied))
        return is_copied

    monkeypatch.setattr(loop_emitter, "can_copy", recorded)
    w, x, s = torch.randn(g, k, n), torch.randn(m, g, k), torch.randn(g, n)
    terms = x[..., None] * (w * s[:, None])
    expected = terms.sum((1, 2)) if op == "sum" else terms.amax((1, 2))
    for order, copied in (
        ("n/16 g k jam 4 m jam 3 n", "km"),
        ("g k jam 8 m jam 2 n", "km"),
        ("g m jam 2 k jam 8 n", "mk" if op == "amax" or g * k <= 16 else "k"),
    ):
        asked.clear()
        schedule = parse_schedule(f"order {order}; parallel 1; vector 16; unroll 2")
        buffers = {"w": w, "x": x, "s": s, "y": torch.empty(m, n)}
        found = run_llvm(product(op, m, n, g, k), schedule, buffers, {}, threads=2)["y"]
        torch.testing.assert_close(found.view(m, n), expected, rtol=1e-5, atol=1e-4)
        assert {axis for axis, is_copied in asked if is_copied} == set(copied)


def test_stages_of_long_sums():
    """Rows that are added at once count as so many steps: the error stays that of staged sums."""
    k = kernel(
        """kernel k(x: in f32, y: out f32) over i:40000 j:32 {
          v0 = load x[(32)*i + j] : f32
          v1 = reduce sum<i> v0 : f32
          store y[j] v1 : f32
        }"""
    )
    x = torch.rand(40000, 32)
    for order in ("i j", "i jam 8 j"):
        schedule = parse_schedule(f"order {order}; parallel 0; vector 16; unroll 1")
        found = run_llvm(k, schedule, {"x": x, "y": torch.empty(32)}, {})["y"]
        assert ((found - x.double().sum(0)).abs() / found).max() < 3e-7


def test_stages_of_rows_around_the_depth():
    m, n, g, k = 4, 16, 64, 512
    w, x, s = torch.rand(g, k, n), torch.rand(m, g, k), torch.rand(g, n)
    exact = torch.einsum("mgk,gkn->mn", x.double(), (w * s[:, None]).double())
    for order in ("g m k n", "g m jam 4 k n", "g m jam 2 k jam 8 n", "g k jam 8 m jam 4 n"):
        schedule = parse_schedule(f"order {order}; parallel 0; vector 16; unroll 1")
        buffers = {"w": w, "x": x, "s": s, "y": torch.empty(m, n)}
        found = run_llvm(product("sum", m, n, g, k), schedule, buffers, {})["y"].view(m, n)
        assert ((found - exact) / exact).abs().max() < 4e-7


def jams(text: str) -> dict[str, int]:
    """Return the factors of unroll-and-jam that are chosen for a kernel, without ones."""
    schedule = choose_schedule(kernel(text), Target(16, 2, avx512=True))
    return {lp.axis: lp.jam for lp in schedule.loops if lp.jam > 1}


def test_choice():
    """Sums of columns take several rows at once, if the sums are long and without guards."""
    text = "kernel k(x: in f32, y: out f32) over i:{rows} j:64 {{\n{body}\n}}"
    load, store = "v0 = load x[(64)*i + j] : f32", "store y[j] v1 : f32"
    column = f"{load}\nv1 = reduce sum<i> v0 : f32\n{store}"
    assert jams(text.format(rows=1000, body=column)) == {"i": COLUMN_SUM_ROWS_AT_ONCE}
    assert not jams(text.format(rows=20, body=column))
    row = f"{load}\nv1 = reduce sum<j> v0 : f32\nstore y[i] v1 : f32"
    assert not jams(text.format(rows=1000, body=row))
    guarded = f"g = in_range [i] 2 900 : b1\n{column.replace(' : f32', ' if g : f32', 1)}"
    assert not jams(text.format(rows=1000, body=guarded))


def test_random_numbers_come_in_blocks_of_columns():
    def masked(x):
        return torch.nn.functional.dropout(x, 0.3).sum(0)

    report = tofuse.explain(masked)(torch.randn(1000, 256))
    assert not any(" jam " in k.loops for k in report.kernels)


def test_choice_for_products():
    """Rows that a factor serves run at once, inside the depth."""
    m, n, g, k = 4, 512, 8, 64
    text = PRODUCT.format(op="sum", m=m, n=n, g=g, k=k)
    for a, b in ((k, n), (g, k)):
        text = text.replace(f"({a}*{b})", f"({a * b})")
    assert jams(text) == {"k": COLUMN_SUM_ROWS_AT_ONCE, "m": 4}
