"""Returned views of arguments that a program writes."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_same, outcome
from tofuse.errors import CaptureError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def expanded(x):
    x.add_(1)
    return (x.expand(2, *x.shape),)


def write_through_views(x):
    rows = x.view(x.shape[0], 1, *x.shape[1:]).select(-2, 0)
    return rows.mul_(2), x * 3


def same_shape(x):
    return x.view(*x.shape).mul_(2), x


def parts(x):
    x.mul_(0.5)
    first, second = x.view(-1, x.shape[-1]).split(2, -1)
    return second, first, x[1:].reshape(-1, 4)


def cache(x):
    x[:, -1] = 7
    return x[:, : x.shape[1] - 1], x.sum()


def without_gradient(x):
    with torch.no_grad():
        x.add_(1)
        view = x.view(-1, x.shape[-1])
    return view, x * 2


PROGRAMS = (expanded, write_through_views, same_shape, parts, cache, without_gradient)


def tensor(kind, rows, offset, dtype=torch.float32):
    x = torch.arange((rows + offset) * 12.0).to(dtype).view(rows + offset, 3, 4)[offset:]
    if kind == "strided":
        return x.transpose(0, 1)[:, :, :4].clone().transpose(0, 1)
    return x.requires_grad_().clone() if kind == "requires grad" else x


@pytest.mark.parametrize("kind", ["plain", "strided", "requires grad"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_views_are_where_they_are_in_eager(program, kind):
    """The first call has no offset; the program is not compiled again for one."""
    if kind != "plain" and program in (parts, without_gradient):
        kind = "plain"  # they view what has no such view, or is written without a record
    compiled = tofuse.compile(program, dynamic=True, specialize=False)
    for rows, offset in ((4, 0), (5, 2), (2, 1)):
        got, expected = (outcome(f, (tensor(kind, rows, offset),), {}) for f in (compiled, program))
        assert_same(got, expected)
        for a, b in zip(got[0], expected[0], strict=True):
            assert a.storage_offset() == b.storage_offset()


@pytest.mark.parametrize("program", PROGRAMS[:4], ids=lambda f: f.__name__)
def test_complex_arguments(program):
    compiled = tofuse.compile(program, dynamic=True)
    for rows, offset in ((4, 0), (5, 2)):
        x = tensor("plain", rows, offset, torch.complex64)
        y = tensor("plain", rows, offset, torch.complex64)
        torch.testing.assert_close((compiled(x), x), (program(y), y))


def test_the_argument_is_written_in_place():
    report = tofuse.explain(expanded, dynamic=True)(torch.randn(40, 30, 20))
    (graph,) = report.graphs
    assert graph.peak_bytes == 0


def test_a_view_that_records_no_gradient_is_left_to_pytorch():
    x = tensor("requires grad", 4, 2)
    report = tofuse.explain(without_gradient, dynamic=True)(x)
    assert "it returns a view, of symbolic sizes, of an argument that it writes" in str(report)
    got = tofuse.compile(without_gradient, dynamic=True)(tensor("requires grad", 4, 2))
    torch.testing.assert_close(got, without_gradient(tensor("requires grad", 4, 2)))


def twice(x):
    view = x.view(-1)
    written = view.mul_(2)
    return written, view, x


def first_row_again(x):
    x.add_(1)
    first, *_ = rows = x.unbind(0)
    return *rows, first


@pytest.mark.parametrize("program", [twice, first_row_again], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["plain", "requires grad"])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"executors": ("aten",)}], ids=str)
def test_a_view_that_is_returned_twice_is_one_tensor(program, kind, options):
    def identities(results, x):
        tensors = [x, *results]
        same = [next(k for k, t in enumerate(tensors) if t is u) for u in results]
        return same, [
            t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for t in results
        ]

    compiled = tofuse.compile(program, **options)
    x, y = tensor(kind, 4, 1), tensor(kind, 4, 1)
    assert identities(compiled(x), x) == identities(program(y), y)


def queue(x):
    x[1:] = x[:-1].clone()
    x[:1] = 1
    newest, *_ = x.split(1)
    return newest, x.narrow(0, 0, x.shape[0]), x[::2]


def shifted(x):
    x.copy_(x.roll((1,), (0,)))
    return x.unflatten(0, (-1, 1)).transpose(0, 1), x.movedim(0, -1).expand(2, *x.shape[1:], -1)


LAYOUTS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": lambda t: torch.stack([t, t], -1)[..., 0],
    "with an offset": lambda t: torch.cat([t[:1], t])[t[:1].shape[0] :],
}


@pytest.mark.parametrize("program", [queue, shifted], ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"capture": "trace"}], ids=str)
def test_sizes_dtypes_and_layouts(options, layout, program):
    """One compiled function meets all sizes, also 0 and 1."""
    compiled = tofuse.compile(program, **options)
    for shape in ((7, 5, 3), (1, 1, 1), (13, 1, 2), (1, 29, 3), (5, 0, 2)):
        for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.complex64):
            values = torch.randn(shape, dtype=torch.complex64) * 3
            values = (values if dtype.is_complex else values.real).to(dtype)
            x, y = LAYOUTS[layout](values.clone()), LAYOUTS[layout](values.clone())
            got, expected = compiled(x), program(y)
            torch.testing.assert_close((*got, x), (*expected, y))
            for a in got:
                assert not a.numel() or a.untyped_storage()._cdata == x.untyped_storage()._cdata


def write_detached(x, w):
    return x.detach().mul_(w)


def write_a_part(x, w):
    part = x.detach()[1:]
    part.mul_(w[1:])
    return part.view(-1), x + 1


@pytest.mark.parametrize("program", [write_detached, write_a_part])
def test_a_detached_view_keeps_the_gradient_of_what_is_written(program):
    """AOTAutograd would return a view without the gradient (seed 508292)."""

    def gradient(function):
        x, w = torch.ones(4), torch.arange(4.0).requires_grad_()
        result = function(x, w)
        leaves = result if isinstance(result, tuple) else (result,)
        sum(t.sum() for t in leaves).backward()
        return [t.requires_grad for t in leaves], x.requires_grad, x, w.grad

    torch.testing.assert_close(gradient(tofuse.compile(program)), gradient(program))
    with pytest.raises(CaptureError, match="a detached view that it writes"):
        gradient(tofuse.compile(program, capture="trace"))
