"""Slices of concats of slices in one kernel never read outside of an operand.

A load of one operand is guarded by that operand's range, and must keep its guard wherever it is
moved. An access before the first element only faults if no memory is mapped there.
"""

import random

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager


def heat_equation(u):
    for _ in range(3):
        around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1)
        u = u + 0.1 * (around - 4 * u)
    return u


def upwind_scheme(u):
    u = u - 0.3 * (u - u.roll(2, -1))
    return u - 0.3 * (u - u.roll(2, -1)) * u.roll((1, -1), (0, 1))


def padded(u):
    p = F.pad(u.sin(), (2, 1, 1, 2)) + 1
    q = p[1:, 2:] * p[:-1, :-2]
    return F.pad(q[:, 1:], (3, 0)) - F.pad(q[:, :-1], (0, 3))


def shifted(u):
    v = torch.cat([u[:, 1:], u[:, :1]], 1).cos()
    w = torch.cat([v[-2:], v[:-2] * u[2:]], 0)
    return torch.cat([w[:, -3:] + 1, w[:, :-3] * 2], 1) + v[:, :1]


@pytest.mark.parametrize("program", [heat_equation, upwind_scheme, padded, shifted])
@pytest.mark.parametrize("shape", [(16, 16), (5, 7), (33, 64)])
def test_rolled_and_padded_slices(program, shape):
    assert_as_eager(program, torch.randn(shape, requires_grad=True), rtol=1e-4, atol=1e-5)


def steps(seed):
    """Return random steps that keep the shape of a 9 x 21 tensor."""
    draw = random.Random(seed)
    chosen = []
    for _ in range(draw.randint(2, 4)):
        dim, n = draw.randint(0, 1), draw.choice([1, 2, 3, 8])
        chosen.append(
            draw.choice(
                [
                    lambda u, dim=dim, n=n: u.roll(n, dim) * 0.5 + u,
                    lambda u, dim=dim, n=n: torch.cat([u.narrow(dim, 0, n).sin(), u], dim).narrow(
                        dim, n // 2, u.shape[dim]
                    ),
                    lambda u, n=n: F.pad(u, (n, 0, 0, 1))[1:, : u.shape[1]] - u,
                    lambda u, dim=dim: u - u.mean(dim, keepdim=True).roll(1),
                    lambda u, dim=dim: u.flip(dim) * u.narrow(1 - dim, 1, 1),
                    lambda u, n=n: torch.stack([u, u.roll(n, 1)], 1).flatten(0, 1)[1::2],
                ]
            )
        )
    return chosen


@pytest.mark.broad(4)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    chosen = steps(seed)

    def program(u):
        for step in chosen:
            u = step(u)
        return u

    x = torch.randn(9, 21, requires_grad=True)
    compiled = tofuse.compile(program, strict=True, capture="trace")
    y, wanted = compiled(x), program(x)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    dy = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad(y, x, dy), torch.autograd.grad(wanted, x, dy), rtol=1e-4, atol=1e-5
    )


@pytest.mark.broad(6)
@pytest.mark.parametrize("shape", [(2, 7, 9, 13), (1, 7, 9, 13), (0, 7, 9, 13)])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("layout", ["rows", "channels last", "reversed", "strided"])
def test_stacked_slices_of_images_in_any_layout(shape, dim, layout):
    def program(x):
        read = [x.select(dim, k).tanh() * (k + 1) for k in range(7)]
        windows = [x.narrow(dim, k, 2) for k in range(6)]
        return torch.stack(read, dim).sum() + sum(windows).sin().sum() + x.select(dim, -1).sum()

    x = torch.randn(shape)
    if layout == "channels last":
        x = x.to(memory_format=torch.channels_last)
    elif layout == "reversed":
        x = x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    elif layout == "strided":
        x = torch.stack([x, x], -1)[..., 1]
    x = x.detach().requires_grad_()
    compiled = tofuse.compile(program, strict=True, capture="trace")
    got, wanted = (torch.autograd.grad(f(x), x)[0] for f in (compiled, program))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
