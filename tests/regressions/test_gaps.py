"""Results whose elements lie with gaps: eager's strides, offsets and shared memory."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
WIDE, COLUMNS = ((16, 8), (16, 1)), ((16, 8), (1, 20))


def written(x, layout=WIDE):
    return torch.empty_strided(*layout).copy_(x * 2)


def assigned(x):
    r = torch.empty_strided(x.size(), x.stride())
    r[:] = x + x
    return r


def added_in_place(x):
    r = written(x, COLUMNS)
    r += 1
    return r


def scaled_columns(x):
    y = x.t() * 2
    z = y[:, ::2]
    z.mul_(3)
    return z


PROGRAMS = {
    "assigned": assigned,
    "copied": written,
    "columns": lambda x: written(x, COLUMNS),
    "filled": lambda x: x.new_empty_strided(*WIDE).fill_(1),
    "zeros, then scaled": lambda x: torch.empty_strided(*WIDE).zero_().mul_(2) + x * 0,
    "zeros": lambda x: torch.empty_strided(*WIDE).zero_(),
    "added in place": added_in_place,
    "views": lambda x: (lambda r: (r, r[1:], r.t()))(written(x)),
    "view": lambda x: written(x).view(4, 4, 8),
    "elements": lambda x: written(x).as_strided((4,), (16,), 1),
    "used twice": lambda x: (lambda r: (r, r.sum(0), r.sin()))(written(x, COLUMNS)),
    "scattered row": lambda x: torch.select_scatter(x, x[0] * 2, 0, 1),
    "scattered slice": lambda x: torch.slice_scatter(x, x[:2] * 2, 0, 1, 3),
    "scattered diagonal": lambda x: torch.diagonal_scatter(x, x[0] * 1.0, 0),
    "view of a result in another layout": scaled_columns,
    "without gaps": lambda x: (x.clone(), x + 0, torch.zeros_like(x), x.t().exp()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_with_gaps(name):
    """A tensor that is written whole is ours to make, with the strides it was asked for."""
    gaps = torch.randn(16, 16).as_strided(*WIDE)
    for x in (gaps, gaps.clone().requires_grad_()):
        assert_as_eager(PROGRAMS[name], x)


def test_result_with_gaps_comes_from_one_kernel():
    report = tofuse.explain(assigned)(torch.randn(16, 16)[:, :8])
    assert len(report.kernels) == 1 and not report.library_calls


@pytest.mark.parametrize("dynamic", [False, True])
def test_large_results_with_gaps(dynamic):
    """The memory is that of the elements and the gaps."""

    def f(x):
        r = torch.empty_strided(x.size(), (4 * x.shape[1], 2))
        r.copy_(x * 2)
        return r, x.exp()

    compiled = tofuse.compile(f, dynamic=dynamic)
    for rows in (300, 7, 301):
        x = torch.randn(rows, 501)
        torch.testing.assert_close(compiled(x), f(x), check_stride=True)


def test_written_argument_with_gaps_keeps_what_lies_between():
    base = torch.randn(16, 16)
    mine, theirs = base.clone(), base.clone()

    def f(x):
        x.mul_(2).add_(x.sum(0))
        return x.sin()

    got, expected = tofuse.compile(f)(mine[:, :8]), f(theirs[:, :8])
    torch.testing.assert_close((mine, got), (theirs, expected), check_stride=True)
