"""A quick test of the whole compiler: programs of every kind, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def softmax_and_norm(x, w, b):
    y = F.layer_norm(F.gelu(x * w + b), x.shape[-1:], w, b)
    return y.softmax(-1), y.mean(0)


def attention(q, k, v):
    return ((q @ k.transpose(-1, -2)) * 0.125).softmax(-1) @ v


def rotary(x, c, s):
    half = x.shape[-1] // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * c + rotated * s


def losses(x, y):
    target = y[:, 0].abs().mul(10).long() % x.shape[1]
    return F.cross_entropy(x, target) + F.mse_loss(x, y) + (x - y).abs().amax(1).sum()


def views(x):
    y = x.t().reshape(8, 4, 16)[:, 1:].flip(-1)
    return F.pad(y * 2, (1, 2)).transpose(0, 1).sum(-1), x.chunk(2, 1)[0].sigmoid()


def shape(*sizes):
    return torch.randn(sizes)


PROGRAMS = {
    "softmax and norm": (softmax_and_norm, (shape(16, 32), shape(32), shape(32))),
    "attention": (attention, (shape(2, 12, 64), shape(2, 12, 64), shape(2, 12, 64))),
    "rotary": (rotary, (shape(2, 5, 16), shape(5, 16), shape(5, 16))),
    "losses": (losses, (shape(12, 7), shape(12, 7))),
    "views": (views, (shape(16, 32),)),
    "bf16": (lambda x: (x.sin() * x).mean(-1), (shape(8, 32).bfloat16(),)),
    "doubles": (lambda x: x.exp().cumsum(0).var(1), (shape(8, 32).double(),)),
    "outer axis": (lambda x: (x.sum(0), x.cos(), x.softmax(0)), (shape(40, 24),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_program(name, grad):
    fn, args = PROGRAMS[name]
    half = args[0].dtype.itemsize == 2
    args = tuple(t.clone().requires_grad_(grad) for t in args)
    tolerance = 2e-2 if half else 1e-4
    assert_as_eager(fn, *args, rtol=tolerance, atol=tolerance)


def test_network_trains():
    net = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1))
    net.append(nn.Linear(32, 1))
    compiled, x = tofuse.compile(net), torch.randn(64, 4)
    y, optimiser = x.sum(1, keepdim=True), torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = F.mse_loss(compiled(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))


def test_symbolic_sizes():
    compiled = tofuse.compile(lambda x: (x * 2).softmax(-1), dynamic=True)
    for n in (3, 17, 64):
        x = torch.randn(n, n + 1)
        torch.testing.assert_close(compiled(x), (x * 2).softmax(-1))


def test_report():
    report = tofuse.explain(lambda x: (x.sin() + 1).sum(-1))(torch.randn(8, 32))
    assert len(report.kernels) == 1 and all(v.fused for v in report.verdicts)
    assert report.bytes_after < report.bytes_before
    assert "fused" in str(report)
