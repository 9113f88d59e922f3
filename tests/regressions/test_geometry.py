"""Rotations, cross products and other algebra of 3 x 3 matrices run in few kernels."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def rotations(q):
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    rows = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        *(2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        *(2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack(rows, -1).view(-1, 3, 3)


def covariances(q, scale):
    m = rotations(q) * scale.exp().unsqueeze(1)
    return m @ m.transpose(1, 2)


def frames(x):
    a, b = x[:, :3], x[:, 3:]
    first = F.normalize(a, dim=1)
    second = F.normalize(b - (first * b).sum(1, keepdim=True) * first, dim=1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], 1)


def determinant(a):
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(1) for row in a.unbind(1))
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def rotated(r, p):
    return torch.einsum("bij,bj->bi", r, p) + torch.eye(3)[0]


PROGRAMS = {
    rotations: ((4,),),
    covariances: ((4,), (3,)),
    frames: ((6,),),
    determinant: ((3, 3),),
    rotated: ((3, 3), (3,)),
}


@pytest.mark.parametrize("count", [1, 37, 1000])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_results_and_gradients_match_float64(program, count, dtype):
    args = [torch.randn(count, *shape).to(dtype).requires_grad_() for shape in PROGRAMS[program]]
    exact = [t.detach().double().requires_grad_() for t in args]
    got, expected = tofuse.compile(program, capture="trace")(*args), program(*exact)
    tolerance = 1e-2 if dtype is torch.float32 else 1e-7
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    assert got.stride() == program(*args).stride()
    weight = torch.rand(got.shape, dtype=torch.float64)
    grads = torch.autograd.grad((got * weight).sum(), args)
    for a, b in zip(grads, torch.autograd.grad((expected * weight).sum(), exact), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_no_library_calls_remain(program):
    report = tofuse.explain(program)(*(torch.randn(5000, *s) for s in PROGRAMS[program]))
    assert not report.library_calls
    assert len(report.kernels) <= 3


@pytest.mark.parametrize("size", [3, 255, 256, 300, 70000])
def test_identity_of_any_size(size):
    for dtype in (torch.bool, torch.float32, torch.int64):

        def identity(dtype=dtype):
            return torch.eye(size, 2, dtype=dtype)

        assert torch.equal(tofuse.compile(identity, capture="trace")(), identity())


def test_contrastive_loss():
    """The loss of SimCLR masks the diagonal by an identity matrix."""

    def contrast(a, b):
        z = F.normalize(torch.cat([a, b]), dim=1)
        diagonal = torch.eye(600, dtype=torch.bool)
        targets = torch.cat([torch.arange(300, 600), torch.arange(300)])
        return F.cross_entropy((z @ z.t() / 0.5).masked_fill(diagonal, -1e9), targets)

    a, b = (torch.randn(300, 32, requires_grad=True) for _ in range(2))
    expected = torch.autograd.grad(contrast(a, b), (a, b))
    got = torch.autograd.grad(tofuse.compile(contrast)(a, b), (a, b))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
