"""Mutation, views and strides: results share memory exactly where they do in eager."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager, assert_same, copies, outcome

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
ATEN = torch.ops.aten
X = torch.arange(48.0).reshape(6, 8) / 7 - 3


def test_write_into_expanded_view_raises_as_in_eager():
    """pytorch 152425"""

    def write(x):
        return x.expand(4, 3).add_(1)

    for fn in (write, tofuse.compile(write)):
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            fn(torch.randn(3))


def test_write_into_self_overlapping_input():
    """pytorch 152425"""

    def write(x):
        x.add_(1)
        return x * 2

    overlapping = torch.randn(10).as_strided((4, 3), (2, 1))
    assert_as_eager(write, overlapping, rtol=0, atol=0)
    report = tofuse.explain(write)(*copies((overlapping,)))
    assert "overlaps itself" in report.notes[0] and not report.kernels
    expanded = torch.randn(1, 4).expand(3, 4)
    for fn in (write, tofuse.compile(write)):
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            fn(*copies((expanded,)))


@pytest.mark.parametrize("fn", [lambda m: ~m, lambda m: m & m.all(0), lambda m: m | m.any(0)])
def test_mask_operators_are_not_mutations(fn):
    """Their names, `invert`, `and_` and `or_`, look like names of in-place operators."""
    mask = torch.tensor([True, False, True]).expand(4, 3)
    assert_as_eager(fn, mask)
    report = tofuse.explain(fn)(mask)
    assert report.kernels and not any("whole" in note for note in report.notes)


@pytest.mark.parametrize("strides", [(2, 1), (0, 1), (1, 1)])
def test_read_of_self_overlapping_input(strides):
    """pytorch 152425"""
    x = torch.randn(20).as_strided((4, 3), strides)
    assert_as_eager(lambda x: x * 2 + x.sum(0), x)


def test_aliased_arguments_after_separate_ones():
    """pytorch 139789"""

    def f(a, b):
        a.add_(1)
        return a * b

    separate, same = (X.clone(), X.clone()), (X, X.view(6, 8))
    overlapping_slices, disjoint = (X[:3], X[2:5]), (X[:3], X[3:])
    for first in (separate, same, overlapping_slices, disjoint):
        torch._dynamo.reset()
        compiled = tofuse.compile(f)
        for pair in (first, separate, same, overlapping_slices, disjoint, separate, same):
            assert_same(outcome(compiled, copies(pair), {}), outcome(f, copies(pair), {}))


@pytest.mark.parametrize("step", [2, 3])
def test_write_into_windows_keeps_gaps(step):
    def f(x):
        windows = x.unfold(0, 2, step)
        windows[1:].transpose(0, 1).mul_(3)
        return x + 1

    assert_as_eager(f, torch.arange(9.0) + 1, rtol=0, atol=0)
    assert_as_eager(lambda x: f(x * 2), torch.arange(9.0) + 1, rtol=0, atol=0)


@torch.library.custom_op("tofuse_tests::shift", mutates_args={"x"})
def shift(x: torch.Tensor, by: torch.Tensor) -> None:
    for k in range(len(x)):
        x[k] += by[k]


def test_custom_operator_mutates_overlapping_arguments():
    def f(x, y):
        shift(x, y)
        return y * 2

    base = torch.arange(6.0)
    compiled = tofuse.compile(f)
    for first, second in ((base, base.clone()), (base[1:], base[:-1]), (base[:3], base[3:])):
        mine, theirs = copies((first, second)), copies((first, second))
        assert_same(outcome(compiled, mine, {}), outcome(f, theirs, {}))


def chain(x):
    x.add_(1)
    x.mul_(2)
    x.relu_()
    return x.exp()


def view_of_input(x):
    view = x[1:3]
    view.add_(1)
    view[:, 2].mul_(3)
    return x * 2, view


def transposed(x):
    view = x.t()
    view.copy_(view * 2 + 1)
    return view.sum(0)


def item_assignment(x):
    x[0] = 5.0
    x[:, 1] = x[:, 2] * 2
    x[x > 3] = 0
    return x + 1


def two_views(x):
    y = x.view(-1)
    y[3:9] += 10
    z = x.view(2, 24)
    z.mul_(0.5)
    return y + 1, z.sum()


def intermediate(x):
    y = x * 2
    y[1].zero_()
    y.t().add_(1)
    return y, y[2]


def augmented_assignment(x):
    x += 1
    x *= x
    x -= x.sum()
    return x


WRITES = (
    chain,
    view_of_input,
    transposed,
    item_assignment,
    two_views,
    intermediate,
    augmented_assignment,
)


@pytest.mark.parametrize("fn", WRITES, ids=lambda f: f.__name__)
def test_in_place_ops_on_inputs_views_and_chains(fn):
    """thunder 1109, 801, 1893"""
    assert_as_eager(fn, X.clone())
    if fn is not two_views:  # it needs a contiguous argument
        assert_as_eager(fn, X.clone().t().contiguous().t())


def test_transposed_argument_of_one_row_is_written():
    assert_as_eager(lambda x: x.transpose_(0, 1).mul_(2), torch.arange(6.0).view(1, 6))


@pytest.mark.parametrize("fn", WRITES[:-1], ids=lambda f: f.__name__)
def test_in_place_ops_with_gradients(fn):
    """thunder 1109, 801, 1893"""
    assert_as_eager(lambda x: fn(x * 1.0), X.clone().requires_grad_())


def test_writes_into_aliasing_arguments():
    """thunder 1893: an argument and a view of it."""

    def f(x, view):
        view.mul_(2)
        return x + 1

    assert_as_eager(f, X, X[1:3])


CHANNELS_LAST = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
LAYOUTS = {
    "pointwise": (lambda x: (x * 2).relu(), CHANNELS_LAST),
    "two layouts": (lambda x: x + x.contiguous(), CHANNELS_LAST),
    "sum": (lambda x: x.sum(1, keepdim=True) + x, CHANNELS_LAST),
    "permuted": (lambda x: x.permute(3, 0, 1, 2) + 1, CHANNELS_LAST),
    "transposed": (lambda x: x.t() * 2, X),
    "sliced": (lambda x: x[:, ::2] + 1, X),
    "broadcast": (lambda x: x[0].expand(6, 8) + 1, X),
    "repeat": (lambda x: x.repeat(3, 1, 1), X),
    "fill": (lambda x: torch.empty_like(x).fill_(x[0, 0]), X),
    "copy": (lambda x: x.clone().copy_(x[0]), X),
    "flip": (lambda x: x.flip(0)[2:].t(), X),
    "pad": (lambda x: F.pad(x, (-1, -2)), X),
    "cat": (lambda x: torch.cat([x, x], 1), CHANNELS_LAST),
    "stack": (lambda x: torch.stack([x.t(), x.t()], -1), X),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), X.t()),
    "batch norm, last": (lambda x: F.batch_norm(x, None, None, training=True) * 2, CHANNELS_LAST),
    "product": (lambda x: torch.cartesian_prod(x[0], x[:, 0]), X),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("grad", [False, True])
def test_result_strides_match_eager(name, grad):
    """pytorch 133512"""
    fn, x = LAYOUTS[name]
    assert_as_eager(fn, copies(x).requires_grad_(grad), rtol=1e-6)


def test_channels_last_through_a_convolution():
    """pytorch 133512"""
    weight = torch.randn(4, 3, 3, 3)
    assert_as_eager(lambda x, w: F.conv2d(x, w, padding=1).relu() + 1, CHANNELS_LAST, weight)


# Eager returns a copy for each of these, although the values do not change.
COPIES = {
    "clone": torch.clone,
    "add": lambda x: x + 0,
    "mul": lambda x: x * 1,
    "pow": lambda x: x**1,
    "clamp": lambda x: x.clamp(min=-1e9),
    "repeat": lambda x: x.repeat(1, 1),
    "flip": lambda x: x.flip(()),
    "roll": lambda x: x.roll(0),
    "cat": lambda x: torch.cat([x]),
    "stack": lambda x: torch.stack([x])[0],
    "pad": lambda x: F.pad(x, (0, 0, 0, 0)),
    "negative pad": lambda x: F.pad(x, (-1, 0)),
    "floor": lambda x: x.floor(),
    "sum of one": lambda x: x.unsqueeze(0).sum(0),
    "mean of one": lambda x: x.unsqueeze(0).mean(0),
    "max of one": lambda x: x.unsqueeze(0).amax(0),
    "converted twice": lambda x: x.double().float(),
    "select": lambda x: x.index_select(0, torch.arange(6)),
    "pieces": lambda x: torch.cat(x.chunk(2)),
    "tril": lambda x: x.tril(100),
    "to": lambda x: x.to(x.dtype, copy=True),
    "one group": lambda x: F.channel_shuffle(x.view(1, 6, 2, 4), 1),
    "pixels": lambda x: F.pixel_shuffle(x.view(1, 6, 2, 4), 1),
    "reflection": lambda x: F.pad(x, (0, 0), mode="reflect"),
    "gradient of a reflection": lambda x: ATEN.reflection_pad1d_backward(x, x, (0, 0)),
    "copy of a view": lambda x: ATEN.view_copy(x.t(), (6, 8)),
    "scatter": lambda x: x.slice_scatter(x),
}

# Eager returns the memory of the argument for each of these.
VIEWS = {
    "itself": lambda x: x,
    "contiguous": lambda x: x.contiguous(),
    "float": lambda x: x.float(),
    "reshape": lambda x: x.reshape(8, 6),
    "flatten": lambda x: x.flatten(),
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[2:, 1],
    "expand": lambda x: x.expand(2, 6, 8),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "diagonal": lambda x: x.diagonal(),
    "detach": lambda x: x.detach(),
    "split": lambda x: x.split(2)[1],
    "real": lambda x: x.real,
    "unsafe split": lambda x: x.unsafe_split(2)[1],
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
}


@pytest.mark.parametrize("fn", [*COPIES.values(), *VIEWS.values()], ids=[*COPIES, *VIEWS])
def test_results_alias_as_in_eager(fn):
    """pytorch 133512: neither fewer nor more copies than eager."""
    assert_as_eager(fn, X, rtol=0, atol=0)
    assert_as_eager(fn, X.clone().requires_grad_(), rtol=0, atol=0)


def test_results_are_arguments_as_in_eager():
    """The very tensor where eager returns it; another tensor of its memory where eager does."""

    def f(x):
        shared = (x.contiguous(), x.float(), F.dropout(x, 0.0), x.mul_(2))
        return *shared, x.view(6, 8), x.detach(), x.expand(6, 8), ATEN._unsafe_view(x, (6, 8))

    x = X.clone()
    expected, got = ([t is x for t in run(x)] for run in (f, tofuse.compile(f)))
    assert got == expected == [True] * 4 + [False] * 4
    alone = tofuse.compile(lambda x: ATEN._unsafe_view(x, (6, 8)))(x)
    assert alone is not x and alone.data_ptr() == x.data_ptr()


def test_result_returned_several_times():
    """One tensor stays one tensor."""

    def f(x):
        y = x * 2
        return y, y, y.t(), y[0]

    for x in (X, X.clone().requires_grad_()):
        a, b, c, d = tofuse.compile(f)(x)
        assert {t.untyped_storage().data_ptr() for t in (b, c, d)} == {a.data_ptr()}
        assert_as_eager(f, x)


def test_slice_returned_beside_its_base():
    def f(x):
        y = x * 2
        z = torch.cat([y, x + 1])
        return z, z[:6]

    for x in (X, X.clone().requires_grad_()):
        base, part = tofuse.compile(f)(x)
        assert base.data_ptr() == part.data_ptr()
        assert_as_eager(f, x)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_result_returned_beside_its_detached_view(capture):
    """The detached view gets no gradient, the result and its other views do."""

    def f(x):
        y = x * 2
        return y.detach(), y[:, :3], y

    x = X.clone().requires_grad_()
    assert_as_eager(f, x, options={"capture": capture})
    assert_as_eager(lambda x: f(x)[:2], x, options={"capture": capture})
    assert_as_eager(lambda x: f(x)[::2], x, options={"capture": capture})


def test_gradients_of_self_overlapping_results():
    """Each window has its own gradient, although the windows of the result overlap."""
    x = X.clone().requires_grad_()
    assert_as_eager(lambda x: (x * 2).unfold(1, 3, 1), x)
    assert_as_eager(lambda x: (x * 2).unfold(0, 3, 1)[1:], x)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_write_into_result_that_eager_copies(grad):
    """Eager copies in the reshape; here the result is a view of a tensor of another shape."""

    def merge(x):
        return x.transpose(0, 1).reshape(8, 6)

    x = torch.randn(2, 8, 3, requires_grad=True)
    results = []
    for fn in (merge, tofuse.compile(merge)):
        with torch.set_grad_enabled(grad):
            y = fn(x)
        assert not y._is_view()
        y[torch.tensor([1, 2])] = x.detach()[0, 0].repeat(2) * 2
        y.mul_(x.sum())
        results += [y, *torch.autograd.grad(y.square().sum(), x)]
    torch.testing.assert_close(results[2:], results[:2])


def test_self_overlapping_saved_index():
    """The rows of the index share memory here; in eager they are separate rows with gaps."""

    def f(x, y):
        rows = (x + 1)[None].expand(2, 8).clone()[:, 1:5]
        return (y * 2).scatter(2, rows.unsqueeze(1).expand(2, 3, 4), 0.5).sin()

    x, y = torch.arange(8) % 7, torch.randn(2, 3, 8, requires_grad=True)
    assert_as_eager(f, x, y)


def test_parts_of_complex_results_share_their_memory():
    """`z.real` is a view with gaps, also if nothing but it is returned."""

    def fn(x):
        z = torch.polar(x.abs(), x)
        w = z * (1 + 2j)
        return z.real, z.imag, z, w.imag[1:], torch.view_as_real(w).flatten(1), z.t().real

    x = torch.randn(5, 7)
    for compiled in (tofuse.compile(fn), tofuse.compile(fn, capture="trace")):
        got, expected = compiled(x), fn(x)
        for result, reference in zip(got, expected, strict=True):
            torch.testing.assert_close(result, reference)
            assert result.stride() == reference.stride()
        got[0].zero_()
        assert not got[2].real.any()
        assert not got[5].any()
        assert got[2].imag.any()
        got[4].zero_()
        assert not got[3].any()
