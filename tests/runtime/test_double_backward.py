"""Second derivatives of compiled programs: eager's, or an error if eager cannot compute them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
CAPTURES = pytest.mark.parametrize("capture", ["dynamo", "trace"])
SAVING = {
    "the argument": lambda x: x**3,
    "a result": torch.tanh,
    "neither": lambda x: x.exp().cos(),
}
SECOND = {
    "among others": lambda g, x: torch.autograd.grad(g.sum() + x.sum(), x),
    "allow unused": lambda g, x: torch.autograd.grad(g.square().sum(), x, allow_unused=True),
    "third": lambda g, x: torch.autograd.grad(
        torch.autograd.grad(g.sum(), x, create_graph=True)[0].sum(), x
    ),
}


@CAPTURES
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("saving", SAVING)
def test_second_and_third_derivatives_match_eager(saving, second, capture):
    function = SAVING[saving]
    compiled = tofuse.compile(function, capture=capture)
    leaf = torch.rand(5, requires_grad=True)
    for computed in (False, True, False):
        x = leaf * 2 if computed else leaf
        found = []
        for f in (compiled, function):
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            found.append([*SECOND[second](g, x), g])
        torch.testing.assert_close(found[0], found[1])


def penalty(model, x):
    """The gradient penalty of https://arxiv.org/abs/1704.00028."""
    x = x.clone().requires_grad_()
    y = model(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.mean() + 10 * (g.flatten(1).norm(dim=1) - 1).square().mean()


def forces(model, x):
    """A loss of energies and of forces, their gradients."""
    x = x.clone().requires_grad_()
    energy = model(x)
    (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return F.mse_loss(energy, torch.ones_like(energy)) + F.mse_loss(force, torch.zeros_like(x))


CRITICS = {
    "dense": lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)),
    "images": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.SiLU(), nn.Flatten(), nn.Linear(8, 1)
    ),
    "normed": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)),
}


@CAPTURES
@pytest.mark.parametrize("loss", [penalty, forces])
@pytest.mark.parametrize("critic", CRITICS)
def test_losses_on_gradients_train(critic, loss, capture):
    model = CRITICS[critic]()
    compiled = tofuse.compile(model, capture=capture)
    for rows in (5, 3, 5):
        x, found = torch.randn(rows, 6), []
        for f in (compiled, model):
            model.zero_grad()
            value = loss(f, x)
            value.backward()
            found.append([value, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
        gradients = [torch.autograd.grad(loss(f, x), [*model.parameters()], allow_unused=True)
                 for f in (compiled, model)]  # fmt: skip
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_symbolic_sizes():
    compiled = tofuse.compile(lambda x: (x * x.shape[0]).sin(), dynamic=True)
    for n in (4, 7, 1):
        x = torch.rand(n, 3, requires_grad=True)
        (g,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], -n * n * (x * n).sin())


def test_argument_computed_from_another():
    compiled = tofuse.compile(lambda a, b: (a * b).sin())
    found = []
    for f in (compiled, lambda a, b: (a * b).sin()):
        a = torch.linspace(0, 1, 5).requires_grad_()
        b = a * 2
        g, h = torch.autograd.grad(f(a, b).sum(), (a, b), create_graph=True)
        found.append([g, h, *torch.autograd.grad((g * h).sum(), (a, b))])
    torch.testing.assert_close(found[0], found[1])


@CAPTURES
@pytest.mark.parametrize("name", ["random", "freed argument"])
def test_double_backward_without_eager_raises(name, capture):
    random = name == "random"
    compiled = tofuse.compile(
        lambda x, w: F.dropout(x.exp(), 0.5) if random else (x @ w).tanh(), capture=capture
    )
    w = torch.rand(5, 3)
    for differentiate in (
        lambda g, x: torch.autograd.grad(g.sum() + x.sum(), x),
        lambda g, x: torch.autograd.grad(g.sum(), x, allow_unused=True),
        lambda g, x: g.sum().backward(),
    ):
        leaf = torch.rand(4, 5, requires_grad=True)
        out = compiled(leaf if random else leaf * 2, w)
        (g,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match=r"differentiated twice|double backward"):
            differentiate(g, leaf)


def test_remaining_argument_raises_if_another_is_freed():
    compiled = tofuse.compile(lambda x, y, w: (x @ w).tanh() * (y @ w).tanh())
    leaf, w = torch.rand(4, 5, requires_grad=True), torch.rand(5, 3)
    alive = leaf.sin()
    out = compiled(leaf * 2, alive, w)
    (g,) = torch.autograd.grad(out.sum(), alive, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(g.sum() + alive.sum(), alive)


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("program", [lambda x: (x @ x.t()).exp(), lambda x: x[::2].cumsum(0) ** 3])
def test_transposed_and_empty_arguments(program, rows):
    x = torch.rand(5, rows, dtype=torch.float64).t().requires_grad_()
    found = []
    for f in (tofuse.compile(program), program):
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), x)[0])
    torch.testing.assert_close(found[0], found[1])


def test_replaced_weights():
    linear = nn.Linear(3, 4)
    model = nn.Sequential(linear, nn.Tanh())
    for capture in ("dynamo", "trace"):
        compiled = tofuse.compile(model, capture=capture)
        for _ in range(3):
            x, found = torch.randn(5, 3, requires_grad=True), []
            for f in (compiled, model):
                (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
                found.append(torch.autograd.grad(g.square().sum(), [*model.parameters()]))
            torch.testing.assert_close(found[0], found[1])
            linear.weight = nn.Parameter(linear.weight.detach() * 2)


def test_write_before_the_backward_raises():
    compiled = tofuse.compile(lambda x, w: (x * w).sin())
    x, w = torch.rand(5, requires_grad=True), torch.rand(5, requires_grad=True)
    out = compiled(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
