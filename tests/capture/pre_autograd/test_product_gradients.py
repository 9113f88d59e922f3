"""Gradients of products and cumulative products, at zeros and at numbers that are not finite."""

import random

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

SHAPES = ((), (1,), (7,), (2, 1), (1, 9), (3, 5), (2, 3, 33), (0, 4), (4, 0), (2, 0, 3), (3, 70))
CALLS = {
    "product": lambda x, dim: x.prod(dim),
    "product, whose dimension stays": lambda x, dim: torch.prod(x * 1, dim, keepdim=True),
    "product of all": lambda x, dim: x.prod() + 0 * dim,
    "wide product": lambda x, dim: torch.prod(x, dim=dim, dtype=torch.float64),
    "wide product of all": lambda x, dim: x.prod(dtype=torch.float64),
    "product by numpy's names": lambda x, dim: x.prod(axis=dim, keepdims=True),
    "scan": lambda x, dim: x.cumprod(dim),
    "wide scan": lambda x, dim: torch.cumprod(x, dim=dim, dtype=torch.float64),
}
SPECIALS = ((), (0.0,), (0.0, -0.0), (float("inf"), 0.0), (float("-inf"), 0.0), (float("nan"), 0.0))


def random_values(rng, shape, dtype, specials):
    """Return numbers near one in some layout, some of which are special."""
    shape = list(shape)
    permutation = rng.sample(range(len(shape)), len(shape))
    x = torch.empty([shape[k] for k in permutation], dtype=dtype)
    x = x.uniform_(0.7, 1.4) * torch.randn(x.shape).sign().to(dtype)
    flat = x.view(-1)
    for _ in range(rng.choice((0, 1, 2, 5)) if len(flat) and specials else 0):
        flat[rng.randrange(len(flat))] = rng.choice(specials)
    x = x.permute([permutation.index(k) for k in range(len(shape))])
    return x[..., ::2] if rng.random() < 0.2 and shape and shape[-1] > 3 else x


def gradients(function, x, weight):
    x = x.detach().requires_grad_()
    result = function(x)
    weight = weight.expand(result.shape[-1:]) if result.dim() else weight.sum()
    return torch.autograd.grad((result * weight).sum(), x)[0]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("call", CALLS)
def test_gradients_of_random_values(call, capture):
    rng = random.Random(call)
    torch.manual_seed(0)
    for _ in range(10):
        shape, dtype = rng.choice(SHAPES), rng.choice((torch.float32, torch.float64))
        dim = rng.randrange(-len(shape), len(shape)) if shape else rng.choice((0, -1))
        torch._dynamo.reset()
        function = lambda x: CALLS[call](x, dim)  # noqa: B023, E731
        compiled = tofuse.compile(function, hand_back=False, capture=capture, dynamic=False)
        for specials in SPECIALS:
            x, weight = random_values(rng, shape, dtype, specials), torch.randn(1)
            expected = gradients(function, x, weight)
            got = gradients(compiled, x, weight)
            torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("function", [lambda x: x.prod(-1), lambda x: x.cumprod(-1), torch.prod])
def test_gradients_are_those_of_differences(function, zeros):
    x = torch.rand(2, 6, dtype=torch.float64) + 0.5
    x[0, :zeros] = 0
    x[1, 4 : 4 + zeros] = 0
    compiled = tofuse.compile(function, hand_back=False)
    assert torch.autograd.gradcheck(compiled, x.requires_grad_())
    assert torch.autograd.gradgradcheck(compiled, x)


def test_a_product_is_no_scan():
    x = torch.rand(2, 300).requires_grad_()
    for function, scans in (
        (lambda x: x.prod(-1), False),
        (torch.prod, False),
        (lambda x: x.cumprod(-1), True),
    ):
        report = tofuse.explain(function)(x)
        assert any(" = scan " in kernel.loops for kernel in report.kernels) == scans


TRANSFORMS = {
    "vmap": torch.vmap(lambda x: x.prod(-1) + x.cumprod(-1).sum()),
    "gradient": torch.func.grad(lambda x: x.prod() + x.cumprod(-1).sum()),
    "forward mode": lambda x: torch.func.jvp(lambda t: t.prod(-1) + t.cumprod(0)[0, 0], (x,), (x,))[
        1
    ],
    "checkpoint": lambda x: checkpoint(
        lambda t: t.prod(-1) * t.cumprod(-1).T, x, use_reentrant=False
    ),
    "condition": lambda x: torch.cond(
        x.detach().sum() > 0, lambda t: t.prod(-1), lambda t: t.cumprod(-1)[:, 0].clone(), (x,)
    ),
    "branches": lambda x: torch.stack([x[k].prod() + x[k].cumprod(-1).sum() for k in range(9)]),
}


@pytest.mark.filterwarnings("ignore:`torch.jit")  # by the first forward mode of a process
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    x = torch.rand(9, 9) + 0.5
    x[2, 3] = x[4, 5] = x[4, 6] = 0
    function, weight = TRANSFORMS[name], torch.ones(1)
    compiled = tofuse.compile(function, hand_back=False)
    got, expected = gradients(compiled, x, weight), gradients(function, x, weight)
    torch.testing.assert_close(got, expected, equal_nan=True)  # NaN in forward mode, at zeros


@pytest.mark.parametrize("function", [lambda x: x.prod(-1), lambda x: x.cumprod(0)])
def test_symbolic_sizes(function):
    compiled = tofuse.compile(function, hand_back=False, dynamic=True)
    for rows, columns in ((3, 5), (4, 17), (2, 64)):
        x, weight = torch.rand(rows, columns) + 0.5, torch.ones(1)
        x[0, 1] = x[1, 1] = 0
        torch.testing.assert_close(gradients(compiled, x, weight), gradients(function, x, weight))
