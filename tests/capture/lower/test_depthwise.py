"""Depthwise convolutions and their gradients become kernels; others stay library calls."""

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
IMAGES = {1: (2, 5, 37), 2: (2, 5, 11, 19), 3: (1, 3, 5, 6, 7)}


def eager_and_compiled(rank, size, options, dtype=torch.float32, bias=True):
    """The result and the gradients of a depthwise convolution, in eager and compiled."""
    shape = IMAGES[rank]
    x = torch.randn(shape, dtype=dtype)
    weight = torch.randn(shape[1], 1, *(size,) * rank, dtype=dtype)
    inputs = [x, weight, torch.randn(shape[1], dtype=dtype)][: 3 if bias else 2]

    def f(x, *rest):
        return CONVOLVE[rank](x, *rest, groups=shape[1], **options)

    def run(f):
        leaves = [t.detach().clone().requires_grad_() for t in inputs]
        y = f(*leaves)
        return y, *torch.autograd.grad(y, leaves, torch.ones_like(y) * 0.5)

    return run(f), run(tofuse.compile(f, capture="trace"))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_results_and_gradients_are_as_eager(rank, some):
    every = itertools.product((1, 2, 3), (1, 2), (0, 1, 3), (1, 2))
    for size, step, padding, dilation in some(every, 8 if rank == 3 else 5):
        options = {"stride": step, "padding": padding, "dilation": dilation}
        expected, got = eager_and_compiled(rank, size, options, bias=padding != 3)
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
            assert a.stride() == b.stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype):
    for rank, size in ((1, 4), (2, 3)):
        expected, got = eager_and_compiled(rank, size, {"padding": 2}, dtype)
        tolerance = 0.1 if dtype.itemsize == 2 else 1e-9
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


def test_convolution_fuses_with_its_neighbours():
    def block(x, w, b):
        return F.silu(F.conv1d(F.pad(x, (3, 0)), w, b, groups=64))

    inputs = torch.randn(2, 64, 256), torch.randn(64, 1, 4), torch.randn(64)
    report = tofuse.explain(block)(*inputs)
    assert (len(report.kernels), len(report.library_calls)) == (1, 0)
    torch.testing.assert_close(tofuse.compile(block)(*inputs), block(*inputs), rtol=1e-4, atol=1e-5)


def test_expensive_inputs_are_not_recomputed_per_tap():
    def block(x, w):
        return F.conv1d(torch.sin(x) * torch.erf(x), w, groups=64)

    report = tofuse.explain(block)(torch.randn(2, 64, 4096), torch.randn(64, 1, 7))
    assert len(report.kernels) == 2
    assert "read in overlapping windows: each element would be computed 7 times" in str(report)


def test_symbolic_length():
    mix = torch.nn.Conv1d(8, 8, 4, padding=3, groups=8)

    def causal(x):
        return mix(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)

    fast = tofuse.compile(causal, dynamic=True)
    for length in (5, 17, 64):
        x = torch.randn(2, length, 8, requires_grad=True)
        torch.testing.assert_close(fast(x), causal(x), rtol=1e-4, atol=1e-5)
        leaves = [x, *mix.parameters()]
        expected = torch.autograd.grad(causal(x).square().sum(), leaves)
        got = torch.autograd.grad(fast(x).square().sum(), leaves)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    report = tofuse.explain(causal, dynamic=True)(torch.randn(2, 17, 8, requires_grad=True))
    assert not report.library_calls


@pytest.mark.parametrize(
    ("groups", "out", "channels_last"), [(1, 6, False), (2, 6, False), (6, 12, False), (6, 6, True)]
)
def test_other_convolutions_are_library_calls(groups, out, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(2, 6, 9, 8).contiguous(memory_format=layout)
    w = torch.randn(out, 6 // groups, 3, 3)

    def f(x, w):
        return F.conv2d(x, w, groups=groups)

    assert len(tofuse.explain(f)(x, w).library_calls) == 1
    torch.testing.assert_close(tofuse.compile(f)(x, w), f(x, w), rtol=1e-4, atol=1e-4)


def test_empty_and_single_element_inputs():
    def f(x, w):
        return F.conv1d(x, w, padding=1, groups=3)

    for shape in ((0, 3, 4), (2, 3, 1)):
        x, w = torch.randn(shape), torch.randn(3, 1, 3)
        torch.testing.assert_close(tofuse.compile(f, capture="trace")(x, w), f(x, w))


def test_training_is_as_eager():
    plain = torch.nn.Sequential(
        torch.nn.Conv1d(12, 12, 5, padding=2, groups=12),
        torch.nn.BatchNorm1d(12),
        torch.nn.SiLU(),
        torch.nn.Conv1d(12, 4, 1),
    )
    again = copy.deepcopy(plain)
    fast, x = tofuse.compile(again), torch.randn(3, 12, 33)
    for net, model in ((plain, plain), (fast, again)):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            net(x).square().mean().backward()
            optimiser.step()
    for a, b in zip(plain.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)
