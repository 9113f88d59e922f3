"""Unroll and jam of column reductions: any number of rows and columns, any reduction."""

import pytest
import torch

import tofuse
from tests.support.kernels import kernel
from tofuse.backends.cpu.llvm.unroll_rows import unrolls_rows
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.ir.nest import For
from tofuse.ir.parse_schedule import parse_schedule

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


def takes_several_rows(body: str, order: str) -> bool:
    """Return whether an iteration of a kernel of 64 columns and 1000 rows takes several rows."""
    k = kernel(f"kernel k(x: in f32, y: out f32) over i:1000 j:64 {{\n{body}\n}}")
    nest = build_nest(k, parse_schedule(f"{order}; parallel 0; vector 16; unroll 4"))
    loops = [n for p in nest.phases for n in p.body if isinstance(n, For)]
    return any(unrolls_rows(nest, n) for n in loops)


def test_row_unroll_conditions():
    load, store = "v0 = load x[(64)*i + j] : f32", "store y[j] v1 : f32"
    column = f"{load}\nv1 = reduce sum<i> v0 : f32\n{store}"
    assert takes_several_rows(column, "order i j")
    row = f"{load}\nv1 = reduce sum<j> v0 : f32\nstore y[i] v1 : f32"
    assert not takes_several_rows(row, "order i j")
    both = f"{load}\nv1 = reduce sum<i> v0 : f32\n{store}\nstore y[(64)*i + j] v0 : f32"
    assert not takes_several_rows(both, "order i j")
