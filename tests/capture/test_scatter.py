"""Writes to a part of a tensor: slices with and without gaps, masks, and their gradients."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def assigned(start, stop, step):
    def f(x, y):
        z = x * 2
        z[:, start:stop:step] = y[:, : z[:, start:stop:step].shape[1]] + 1
        return z * x

    return f


PLACES = [(0, None, 2), (1, None, 2), (1, None, 3), (2, 11, 4), (0, 1, 2), (12, 13, 5), (5, 5, 2)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", [12, 13])
@pytest.mark.parametrize("grad", [False, True])
def test_slices_with_gaps(place, width, grad):
    x = torch.randn(5, width, requires_grad=grad)
    y = torch.randn(5, width, requires_grad=grad)
    assert_as_eager(assigned(*place), x, y)
    (graph, *_) = tofuse.explain(assigned(*place))(x, y).graphs
    assert not graph.library_calls


@pytest.mark.parametrize("options", [{}, {"capture": "trace"}], ids=str)
def test_strides_are_those_of_what_is_written_to(options):
    x = torch.randn(6, 33).t()

    def f(x):
        z = x.clone()
        z[:, ::2] = x[:, :3] * 3
        return z

    assert_as_eager(f, x, options=options)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_slices_with_gaps(place, dim):
    index = (slice(None),) * dim + (slice(*place),)
    x = torch.randn(13, 14, requires_grad=True)
    assert_as_eager(lambda x: x[index].sin() * 2, x)


def test_a_rotation_of_pairs_is_one_kernel_each_way():
    def rotated(x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    x = torch.randn(2, 33, 4, 32, requires_grad=True)
    cos, sin = torch.randn(2, 33, 1, 16)
    assert_as_eager(rotated, x, cos, sin)
    report = tofuse.explain(rotated)(x, cos, sin)
    assert [(len(g.kernels), len(g.library_calls)) for g in report.graphs] == [(1, 0), (1, 0)]


MASKED = {
    "number": lambda x, m, y: x.index_put((m,), x.new_tensor(3.0)),
    "assigned": lambda x, m, y: _assign(x, m, 0.0),
    "rows": lambda x, m, y: _assign(x, m[:, 0], 1.5),
    "row of values": lambda x, m, y: _assign(x, m[:, 0], y[0]),
    "value for each": lambda x, m, y: _assign(x, m, y[m]),
    "added": lambda x, m, y: x.index_put((m,), y[0, 0], accumulate=True),
    "within": lambda x, m, y: _assign(x[:, ::3], m[:, ::3], -1.0),
}


def _assign(x, places, value):
    z = x.clone()
    z[places] = value
    return z * 2


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("grad", [False, True])
def test_masks(name, grad):
    x = torch.randn(17, 9, requires_grad=grad)
    y = torch.randn(17, 9)  # its gradient is of a size that only the mask's numbers tell
    assert_as_eager(MASKED[name], x, torch.rand(17, 9) > 0.5, y)


def test_a_number_where_a_mask_says_is_fused():
    (graph,) = tofuse.explain(MASKED["assigned"])(
        torch.randn(8, 8), torch.rand(8, 8) > 0.5, torch.randn(8, 8)
    ).graphs
    assert len(graph.kernels) == 1 and not graph.library_calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_types(dtype):
    def f(x):
        z = x.clone()
        z[..., 1::2] = x[..., ::2]
        z[x > 0] = 0
        return z

    assert_as_eager(f, (torch.randn(6, 10) * 3).to(dtype))


def test_sizes_that_are_symbols():
    def f(x):
        z = torch.zeros_like(x)
        z[:, ::2] = x[:, 1::2] * 2
        return z + x

    compiled = tofuse.compile(f, dynamic=True)
    for rows in (7, 1, 20):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), f(x))
