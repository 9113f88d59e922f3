"""Gradients of embeddings: repeated indices, padding, half precision, no indices."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
IDS = {
    "rows": torch.tensor([[3, 0, 3, 9], [1, 3, 2, 2]]),
    "one": torch.tensor(4),
    "flat": torch.randint(0, 10, (700,)),
    "none": torch.empty(0, dtype=torch.int64),
    "int32": torch.tensor([1, 1, 5], dtype=torch.int32),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}], ids=str)
@pytest.mark.parametrize("ids", IDS)
def test_gradients_match_eager(ids, options, dtype):
    def f(weight, ids):
        return F.embedding(ids, weight, **options) * 2

    weight = torch.randn(10, 7, dtype=dtype, requires_grad=True)
    out, want = tofuse.compile(f)(weight, IDS[ids]), f(weight, IDS[ids])
    grad_output = torch.randn_like(want)
    (got,) = torch.autograd.grad(out, weight, grad_output)
    (theirs,) = torch.autograd.grad(want, weight, grad_output)
    assert got.stride() == theirs.stride()
    wide = weight.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(f(wide, IDS[ids]), wide, grad_output.double())
    limit = (theirs - exact).abs().max() + 1e-6  # bf16 sums of 70 rows are eager's worst
    assert (got - exact).abs().max() <= limit


@pytest.mark.parametrize("expanded", [False, True])
def test_strided_rows_are_copied_before_scatter(expanded):
    def f(x, indices, rows):
        if expanded:
            return x.scatter_add(0, indices[:, None].expand_as(rows), rows)
        return x.index_add(0, indices, rows)

    x, indices = torch.randn(90, 7), torch.randint(0, 90, (40,))  # too few rows for a kernel
    for rows in (torch.randn(40, 21)[:, 7:14], torch.randn(7, 40).T, torch.randn(40, 7)):
        torch.testing.assert_close(tofuse.compile(f)(x, indices, rows), f(x, indices, rows))
        report = tofuse.explain(f)(x, indices, rows)
        assert len(report.kernels) == (0 if rows.is_contiguous() else 1)


def test_padding_row_gets_no_nan_gradient():
    weight, ids = torch.randn(10, 7, requires_grad=True), torch.tensor([3, 1])
    grad_output = torch.full((2, 7), float("nan"))
    f = tofuse.compile(lambda w, i: F.embedding(i, w, padding_idx=3))
    (got,) = torch.autograd.grad(f(weight, ids), weight, grad_output)
    assert not got[3].any() and got[1].isnan().all()


def test_gradient_is_accumulated_into_planned_buffer():
    weight, ids = torch.randn(5000, 64, requires_grad=True), torch.randint(0, 5000, (64,))
    f = tofuse.compile(lambda w, i: F.embedding(i, w).sin())
    plan = tofuse.explain(lambda w, i: F.embedding(i, w).sin())(weight, ids).graphs[-1].plan
    assert "call aten.index_add.out(" in plan
    for _ in range(3):
        (got,) = torch.autograd.grad(f(weight, ids).sum(), weight)
    (exact,) = torch.autograd.grad(F.embedding(ids, weight).sin().sum(), weight)
    torch.testing.assert_close(got, exact)


def test_rows_of_complex_numbers_are_added():
    """No kernel copies them to row-major memory first."""
    x, rows = (torch.randn(5, 5, dtype=torch.complex64).t() for _ in range(2))
    program = lambda x, rows: x.index_add(-1, torch.arange(5).flip(0), rows, alpha=-1)  # noqa: E731
    expected = program(x, rows)
    torch.testing.assert_close(tofuse.compile(program, strict=True)(x, rows), expected)
