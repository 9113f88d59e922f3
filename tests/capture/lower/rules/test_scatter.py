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


@pytest.mark.broad(5)
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


def test_what_is_written_becomes_of_the_type_of_what_it_is_written_to():
    x = torch.arange(12.0).reshape(3, 4)

    def f(x):
        mask, whole = x > 5, x.long()
        row, rows = x[1] / 3, x[:2] / 3
        return (
            *(torch.select_scatter(t, row, 0, -1) for t in (mask, whole)),
            *(torch.slice_scatter(t, rows, 0, 1, 3) for t in (mask, whole)),
        )

    assert_as_eager(f, x, rtol=0, atol=0)
    assert not tofuse.explain(f)(x).library_calls


def test_nothing_is_written_to_nothing():
    def f(x):
        x[:1] *= 2
        return torch.slice_scatter(x, x[1:], 0, 1)

    assert_as_eager(f, torch.zeros(0, 3), options={"strict": True})


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


MASK, ROWS = torch.arange(40).reshape(8, 5) % 3 == 0, torch.arange(8) % 3 == 0


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5)])
@pytest.mark.parametrize("mask", [MASK, ROWS], ids=["elements", "rows"])
def test_one_value_that_trains_is_a_where(mask, shape):
    shape = shape if mask is ROWS else shape[:0]
    x, y = torch.randn(8, 5, requires_grad=True), torch.randn(shape, requires_grad=True)
    assert_as_eager(masked, x, mask, y)
    assert not tofuse.explain(masked)(x, mask, y).library_calls


@pytest.mark.parametrize(
    ("mask", "row"), [(MASK, ()), (ROWS, (5,)), (ROWS, (1,))], ids=["elements", "rows", "one each"]
)
def test_a_value_that_trains_for_each_place(mask, row):
    """The write is PyTorch's, and only that; it is checked, once."""
    x = torch.randn(8, 5, requires_grad=True)
    y = torch.randn(int(mask.sum()), *row, requires_grad=True)
    assert_as_eager(masked, x, mask, y)
    report = tofuse.explain(masked)(x, mask, y)
    assert [c.name.split(".")[1] for c in report.library_calls] == [
        "_assert_async",
        "masked_scatter",
        "masked_scatter_backward",
    ]
    with pytest.raises(RuntimeError, match="shape mismatch"):
        tofuse.compile(masked)(x, mask, y[1:])


def masked(x, mask, y):
    z = torch.sin(x) * 2
    z[mask] = y
    return (z * 3).tanh()
