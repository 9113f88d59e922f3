"""Unrolled Python loops compile to few kernels, forward and backward."""

import pytest
import torch

import tofuse
from tests.support.eager import assert_as_eager


def running_mean(x):
    out = [x[:, 0]]
    for t in range(1, 24):
        out.append(0.9 * out[-1] + 0.1 * x[:, t])
    return torch.stack(out, 1)


def gated(x):
    state, out = torch.zeros(x.shape[0], x.shape[2]), []
    for t in range(5):
        state = x[:, t].sigmoid() * state + x[:, t + 1]
        out.append(state)
    return torch.stack(out, 1)


def advantages(x):
    total, out = torch.zeros(x.shape[0], x.shape[2]), []
    for t in range(22, -1, -1):
        total = x[:, t].sin() + 0.99 * x[:, t + 1] - x[:, t] + 0.94 * total
        out.append(total)
    return torch.stack(out[::-1], 1)


@pytest.mark.parametrize("program", [running_mean, gated, advantages])
def test_unrolled_recurrences(program):
    x = torch.randn(6, 24, 19, requires_grad=True)
    assert_as_eager(program, x, rtol=1e-4, atol=1e-5)
    report = tofuse.explain(program)(x)
    assert len(report.kernels) <= 4 and len(report.library_calls) <= 3


def test_fixed_point_iteration_is_one_kernel_per_phase():
    def mandelbrot(x, y):
        a, b = x, y
        for _ in range(10):
            a, b = (a * a - b * b + x).clamp(-2, 2), (2 * a * b + y).clamp(-2, 2)
        return a * a + b * b

    x, y = (torch.rand(40, 33, requires_grad=True) for _ in range(2))
    assert_as_eager(mandelbrot, x, y, rtol=1e-3, atol=1e-4)
    report = tofuse.explain(mandelbrot)(x, y)
    assert len(report.kernels) == 2 and not report.library_calls


@pytest.mark.parametrize("live", [3, 16])
def test_more_ops_than_one_kernel_may_have(live):
    def program(*inputs):
        values = list(inputs)
        for k in range(1100):
            x, y = values[-1 - k % live], values[-1 - (3 * k + 1) % live]
            new = x + y if k % 3 == 0 else x * 0.5 - y if k % 3 == 1 else (x * y).sigmoid()
            values = [*values, new][-live:]
        return sum(values[1:], values[0])

    values = [torch.randn(7, 30) for _ in range(live)]
    compiled = tofuse.compile(program, capture="trace", strict=True)
    torch.testing.assert_close(compiled(*values), program(*values), rtol=1e-4, atol=1e-4)
    report = tofuse.explain(program, capture="trace")(*values)
    assert 1 < len(report.kernels) <= 6
    assert all(g.peak_bytes <= g.eager_peak_bytes for g in report.graphs)
