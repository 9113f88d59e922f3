"""Programs that must become one kernel, and programs that must become none."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager, kernel_names
from tests.support.peak import peak_bytes

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_softmax_over_the_outer_axis_is_one_kernel():
    """pytorch 93718"""
    x = torch.randn(64, 300)
    assert len(kernel_names(lambda x: x.softmax(0), x)) == 1
    assert_as_eager(lambda x: x.softmax(0), x)


@pytest.mark.parametrize("grad", [False, True])
def test_group_norm_is_one_kernel_that_reads_input_once(grad):
    """Statistics view the image as groups, later ops as channels."""

    def f(x, w, b):
        return F.silu(F.group_norm(x, 4, w, b))

    args = [t.requires_grad_(grad) for t in (torch.randn(2, 16, 8, 8), *torch.randn(2, 16))]
    report = tofuse.explain(f)(*args)
    assert len(report.forward.kernels) == 1 and not report.library_calls
    assert report.forward.bytes_after < 2.1 * args[0].nbytes
    assert len(report.backward.kernels) == grad
    assert_as_eager(f, *args, rtol=1e-4, atol=1e-4)


def test_sum_and_cosine_read_input_once():
    """pytorch test_perf, "would be nice" """

    def f(x):
        return x.sum(0), x.cos()

    x = torch.randn(300, 200)
    report = tofuse.explain(f)(x)
    assert len(report.kernels) == 1
    assert report.bytes_after == 2 * x.nbytes + 4 * 200
    assert_as_eager(f, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grad", [False, True])
def test_cross_entropy_reads_its_logits_once(grad):
    """pytorch 153346"""
    logits, target = torch.randn(64, 1000, requires_grad=grad), torch.randint(0, 1000, (64,))
    report = tofuse.explain(F.cross_entropy)(logits, target)
    assert len(report.forward.kernels) == 1 and not report.library_calls
    assert report.forward.bytes_after < 1.1 * logits.nbytes
    assert len(report.backward.kernels) == grad
    assert_as_eager(F.cross_entropy, logits, target)


OUTPUTS = {
    "views": lambda x: (x.t(), x.view(-1), x[1:], x.unsqueeze(0), x.expand(2, 8, 8)),
    "nothing": lambda x: x,
    "permutes": lambda x: x.permute(1, 0).unflatten(0, (2, 4)).movedim(0, 2),
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("grad", [False, True])
def test_programs_of_views_have_no_kernel(name, grad):
    """thunder 1251"""
    report = tofuse.explain(OUTPUTS[name])(torch.randn(8, 8, requires_grad=grad))
    assert not report.forward.kernels and not report.forward.library_calls


@pytest.mark.parametrize("present", list(itertools.product((False, True), repeat=3)))
def test_views_between_pointwise_ops_are_one_kernel(present):
    """csarofeen, bookend views: all eight combinations of views"""

    def f(x):
        x = x.view(32, 64) if present[0] else x
        x = x.sin()
        x = x.view(8, 256) if present[1] else x
        x = x.cos()
        return x.view(2, 16, 64) if present[2] else x

    x = torch.randn(4, 512)
    assert len(kernel_names(f, x)) == 1
    assert_as_eager(f, x)


RESHAPED = {
    "reshape": lambda x: (x.sin().reshape(6, 6) * 2).cos(),
    "reshape and back": lambda x: (x.sin().reshape(6, 6) * 2).cos().view(4, 9) + x,
    "two outputs": lambda x: (lambda y: (y.reshape(6, 6).exp(), y.sin()))(x * 2),
    "with a number": lambda x: (x.exp().view(2, 18) + 1).reshape(6, 6) * x[0, 0],
    "mask": lambda x: (x > 0).reshape(6, 6).logical_not(),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_reshape_without_common_axes_is_one_flat_loop(name):
    x = torch.randn(4, 9, requires_grad=True)
    assert_as_eager(RESHAPED[name], x)
    assert_as_eager(RESHAPED[name], torch.randn(8, 9)[::2])
    assert len(kernel_names(RESHAPED[name], x.detach())) == 1


MERGED_AND_SLICED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: x.transpose(1, 2).reshape(2, 15)[:, 2:] + 1,
    "merged again": lambda x: x.transpose(1, 2).reshape(2, 15)[:, :13].reshape(26) * 2,
    "rolled": lambda x: x.transpose(1, 2).reshape(2, 15).roll(4, 1).exp(),
}


@pytest.mark.parametrize("name", MERGED_AND_SLICED)
def test_slice_of_merged_dimensions_reads_a_copy(name):
    """No loop runs over a part of two merged strided dimensions, so they are copied first."""
    f, x = MERGED_AND_SLICED[name], torch.randn(2, 3, 5, requires_grad=True)
    report = tofuse.explain(f)(x)
    assert not report.notes and not report.library_calls
    assert len(report.forward.kernels) <= 3
    assert_as_eager(f, x)


READ_ALONG_TWO: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "differences": lambda y: y[:, None] - y[:, :, None],
    "with another use": lambda y: (y[:, None] - y[:, :, None]).exp() * y[:, :, None],
    "three uses": lambda y: torch.where(y[:, None] > 0, y[:, :, None], y.roll(1, 1)[:, None]),
}


@pytest.mark.parametrize("name", READ_ALONG_TWO)
def test_merged_dimensions_broadcast_two_ways(name):
    """Both reads used the axes of one view, which read a diagonal."""
    f, x = READ_ALONG_TWO[name], torch.randn(2, 3, 5, requires_grad=True)
    merged = lambda x: f(x.transpose(1, 2).reshape(2, 15))  # noqa: E731
    report = tofuse.explain(merged)(x)
    assert not report.notes and not report.library_calls
    assert_as_eager(merged, x)


def test_reshape_between_softmaxes_is_a_boundary_with_verdict():
    def f(x):
        y = x.softmax(1)
        return y.reshape(6, 6).softmax(1)

    assert_as_eager(f, torch.randn(4, 9))
    report = tofuse.explain(f)(torch.randn(4, 9))
    assert len(report.kernels) == 2
    assert any("do not divide" in v.rule for v in report.verdicts if not v.fused)


@pytest.mark.parametrize("count, copies", [(2, 2), (6, 2), (16, 4)])
def test_concat_into_layer_norm_is_one_kernel(count, copies):
    """pytorch PR 180930"""
    operands = [torch.randn(512, 1024 // count) for _ in range(count)]
    width = count * (1024 // count)

    def f(*operands):
        return F.layer_norm(torch.cat(operands, -1), (width,))

    assert_as_eager(f, *operands, rtol=1e-4, atol=1e-4)
    report = tofuse.explain(f)(*operands)
    assert len(report.kernels) == 1
    assert report.bytes_after == copies * sum(x.nbytes for x in operands)  # eager: 15


def attention(q, k, v):
    return ((q @ k.transpose(-1, -2)) / 8).softmax(-1) @ v


def feed_forward(x, w1, w2):
    return F.gelu(x @ w1) @ w2 + x


def norms(x):
    y = F.layer_norm(x, x.shape[-1:]) * 2
    return F.layer_norm(y + x, x.shape[-1:]).relu()


def branches(x):
    a, b, c = x.sin(), x.cos(), x.tanh()
    return (a * b).sum(-1), (b * c).sum(-1), (a * c).sum(-1)


def loss(x):
    return F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long))


def scan(x):
    y = x.relu()
    z = y.cumsum(-1)
    return (z * y + x).sum(-1)


LARGE = (256, 512)
PEAKS: dict[str, tuple[Callable[..., object], list[tuple[int, ...]]]] = {
    "attention": (attention, [(4, 128, 64)] * 3),
    "feed forward": (feed_forward, [(256, 128), (128, 512), (512, 128)]),
    "norms": (norms, [LARGE]),
    "branches": (branches, [LARGE]),
    "loss": (loss, [LARGE]),
    "scan": (scan, [LARGE]),
    "views": (lambda x: (x.t() * 2 + 1).reshape(-1).sin(), [LARGE]),
    "cat": (lambda x, y: torch.cat([x, y.relu()], -1).softmax(-1), [LARGE, LARGE]),
    "many": (lambda x: sum((x * k).exp() for k in range(12)), [LARGE]),
}


@pytest.mark.parametrize("name", PEAKS)
@pytest.mark.parametrize("grad", [False, True])
def test_peak_memory_is_at_most_eager(name, grad):
    """pytorch 135305, 122512, 120381"""
    fn, shapes = PEAKS[name]
    args = [torch.randn(s, requires_grad=grad) for s in shapes]
    compiled = tofuse.compile(fn, pool_bytes=0)
    slack = 32 * 1024  # seeds, partial sums, allocations of Python calls
    assert peak_bytes(compiled, *args) <= peak_bytes(fn, *args) + slack
