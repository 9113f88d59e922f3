"""Writes to a part of a tensor: contiguous and strided slices, masks, and their gradients."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def slice_assignment(start, stop, step):
    def f(x, y):
        z = x * 2
        z[:, start:stop:step] = y[:, : z[:, start:stop:step].shape[1]] + 1
        return z * x

    return f


SLICES = [(0, None, 2), (1, None, 2), (1, None, 3), (2, 11, 4), (0, 1, 2), (12, 13, 5), (5, 5, 2)]


@pytest.mark.parametrize("slice_bounds", SLICES)
@pytest.mark.parametrize("width", [12, 13])
@pytest.mark.parametrize("grad", [False, True])
def test_strided_slices(slice_bounds, width, grad):
    x = torch.randn(5, width, requires_grad=grad)
    y = torch.randn(5, width, requires_grad=grad)
    assert_as_eager(slice_assignment(*slice_bounds), x, y)
    (graph, *_) = tofuse.explain(slice_assignment(*slice_bounds))(x, y).graphs
    assert not graph.library_calls


@pytest.mark.parametrize("options", [{}, {"capture": "trace"}], ids=str)
def test_result_has_the_strides_of_the_target(options):
    x = torch.randn(6, 33).t()

    def f(x):
        z = x.clone()
        z[:, ::2] = x[:, :3] * 3
        return z

    assert_as_eager(f, x, options=options)


def test_source_is_converted_to_the_dtype_of_the_target():
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


def test_empty_slices():
    def f(x):
        x[:1] *= 2
        return torch.slice_scatter(x, x[1:], 0, 1)

    assert_as_eager(f, torch.zeros(0, 3), options={"strict": True})


@pytest.mark.parametrize("slice_bounds", SLICES)
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_strided_slices(slice_bounds, dim):
    index = (slice(None),) * dim + (slice(*slice_bounds),)
    x = torch.randn(13, 14, requires_grad=True)
    assert_as_eager(lambda x: x[index].sin() * 2, x)


def test_a_rotary_embedding_is_one_kernel_per_phase():
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


def _assign(x, mask, value):
    z = x.clone()
    z[mask] = value
    return z * 2


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("grad", [False, True])
def test_masks(name, grad):
    x = torch.randn(17, 9, requires_grad=grad)
    y = torch.randn(17, 9)  # no gradient: its size would depend on the mask's data
    assert_as_eager(MASKED[name], x, torch.rand(17, 9) > 0.5, y)


def test_a_masked_fill_is_fused():
    (graph,) = tofuse.explain(MASKED["assigned"])(
        torch.randn(8, 8), torch.rand(8, 8) > 0.5, torch.randn(8, 8)
    ).graphs
    assert len(graph.kernels) == 1 and not graph.library_calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_dtypes(dtype):
    def f(x):
        z = x.clone()
        z[..., 1::2] = x[..., ::2]
        z[x > 0] = 0
        return z

    assert_as_eager(f, (torch.randn(6, 10) * 3).to(dtype))


def test_symbolic_sizes():
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
def test_one_masked_value_with_gradient_is_a_where(mask, shape):
    shape = shape if mask is ROWS else shape[:0]
    x, y = torch.randn(8, 5, requires_grad=True), torch.randn(shape, requires_grad=True)
    assert_as_eager(masked_assignment, x, mask, y)
    assert not tofuse.explain(masked_assignment)(x, mask, y).library_calls


@pytest.mark.parametrize(
    ("mask", "row"), [(MASK, ()), (ROWS, (5,)), (ROWS, (1,))], ids=["elements", "rows", "one each"]
)
def test_masked_values_with_gradients_are_a_library_call(mask, row):
    """Only the write is a library call; it is checked once."""
    x = torch.randn(8, 5, requires_grad=True)
    y = torch.randn(int(mask.sum()), *row, requires_grad=True)
    assert_as_eager(masked_assignment, x, mask, y)
    report = tofuse.explain(masked_assignment)(x, mask, y)
    assert [c.name.split(".")[1] for c in report.library_calls] == [
        "_assert_async",
        "masked_scatter",
        "masked_scatter_backward",
    ]
    with pytest.raises(RuntimeError, match="shape mismatch"):
        tofuse.compile(masked_assignment)(x, mask, y[1:])


def masked_assignment(x, mask, y):
    z = torch.sin(x) * 2
    z[mask] = y
    return (z * 3).tanh()
