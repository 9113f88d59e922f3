"""Images that are laid out channels last: the same results, in the same layout, on fewer copies."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
LAST = "channels last"


def layers(bias=False):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=bias),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 16, 3, padding=1, bias=bias),
        nn.ReLU(),
    )


def notes(fn, *inputs):
    return " ".join(n for g in tofuse.explain(fn)(*inputs).graphs for n in g.notes)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 20, 20), (1, 3, 17, 23), (3, 3, 8, 9)])
def test_results_gradients_and_layout_are_eagers(shape, train):
    model, other = layers().train(train), layers().train(train)
    other.load_state_dict(model.state_dict())
    x = torch.randn(shape)
    compiled = tofuse.compile(model)
    out, want = compiled(x), other(x)
    assert LAST in notes(model, x)
    assert out.stride() == want.stride()
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
    given = torch.randn_like(want)
    (out * given).sum().backward()
    (want * given).sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert a.grad.stride() == b.grad.stride()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)


def test_sizes_that_change():
    model = layers().eval()
    compiled = tofuse.compile(model, dynamic=True)
    for side in (16, 21, 33):
        x = torch.randn(2, 3, side, side)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_view_of_what_lies_otherwise_is_left_as_it_is():
    model = layers()

    def f(x):
        return model(x).view(x.shape[0], -1)

    x = torch.randn(2, 3, 20, 20)
    assert LAST not in notes(f, x)
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(f)(x), f(x), rtol=1e-4, atol=1e-4)


def test_a_write_through_what_would_be_a_copy_is_left_as_it_is():
    model = layers().requires_grad_(False)

    def f(x):
        y = model(x)
        y.flatten(1).mul_(2)
        return y

    x = torch.randn(2, 3, 20, 20)
    assert LAST not in notes(f, x)
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(f)(x), f(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: F.conv2d(x, w),  # a lone one
        lambda x, w: F.conv2d(F.conv2d(x, w[:, :, :1, :1]), w[:, :, :1, :1]),  # products
        lambda x, w: F.conv2d(F.conv2d(x, w), w).transpose(1, 2),  # not row by row
        lambda x, w: torch.as_strided(F.conv2d(F.conv2d(x, w), w), (2, 8), (8, 1)),
    ],
)
def test_programs_that_are_left_as_they_are(f):
    x, w = torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3)
    assert LAST not in notes(f, x, w)
    torch._dynamo.reset()
    assert_as_eager(f, x, w, rtol=1e-3, atol=1e-3)


def test_images_that_lie_so_already_stay():
    model = layers().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 20, 20).to(memory_format=torch.channels_last)
    out = tofuse.compile(model)(x)
    assert out.stride() == model(x).stride()
    torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-4)


def test_several_results_and_an_argument_among_them():
    a, b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def f(x):
        y = a(x)
        return y, b(y) + x, y.mean((2, 3)), x

    x = torch.randn(2, 3, 12, 12)
    assert LAST in notes(f, x)
    torch._dynamo.reset()
    for got, want in zip(tofuse.compile(f)(x), f(x), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_results_that_share_memory_still_do():
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def f(x):
        y = second(first(x))
        return y, y[0], y.flatten(1)

    with torch.no_grad():
        whole, part, flat = tofuse.compile(f)(torch.randn(2, 3, 12, 12))
        whole.zero_()
    assert not part.any() and not flat.any()


def test_a_fault_elsewhere_is_not_taken_for_a_view(monkeypatch):
    """Only that the program cannot lie otherwise makes it stay; any other error is the user's."""
    compiled = []

    def fail(*args):
        compiled.append(args)
        raise RuntimeError("no view of this")

    monkeypatch.setattr(tofuse.api, "compile_graph", fail)
    with pytest.raises(Exception, match="no view of this"):
        tofuse.compile(layers().eval(), strict=True)(torch.randn(2, 3, 20, 20))
    assert len(compiled) == 1


@pytest.mark.parametrize("side", [2, 40])
def test_weights_larger_than_images_keep_them_row_by_row(side):
    """Each weight would be laid out anew at every call."""
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3))
    x = torch.randn(1, 64, 2 + side, 2 + side)
    said = notes(model, x)
    assert ("row by row, though" in said) == (side == 2)
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(model)(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_weights_are_laid_out_by_kernels(groups, needs):
    """The library would copy them at every call, into memory of its own."""
    x = torch.randn(2, 8, 9, 7).to(memory_format=torch.channels_last).requires_grad_(needs[0])
    w = torch.randn(6, 8 // groups, 3, 3).requires_grad_(needs[1])

    def f(x, w):
        return F.conv2d(x, w, groups=groups).relu()

    assert_as_eager(f, x, w, rtol=1e-4, atol=1e-4)
    assert len(tofuse.explain(f)(x, w).kernels) > 1
    out, want = tofuse.compile(f)(x, w), f(x, w)
    assert out.stride() == want.stride()
    for got, grad in zip(
        torch.autograd.grad(out.sum(), [t for t in (x, w) if t.requires_grad]),
        torch.autograd.grad(want.sum(), [t for t in (x, w) if t.requires_grad]),
        strict=True,
    ):
        assert got.stride() == grad.stride()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["plain", "point", "depthwise", "turned"])
def test_gradients_lie_as_eagers(kind, bias, last):
    made = {
        "plain": lambda: nn.Conv2d(6, 8, 3, padding=1, bias=bias),
        "point": lambda: nn.Conv2d(6, 8, 1, bias=bias),
        "depthwise": lambda: nn.Conv2d(6, 6, 3, groups=6, bias=bias),
        "turned": lambda: nn.ConvTranspose2d(6, 4, 3, 2, bias=bias),
    }
    model, x = made[kind](), torch.randn(2, 6, 9, 8)
    if last:
        x = x.to(memory_format=torch.channels_last)
    compiled = tofuse.compile(lambda x: model(x).relu())
    inner, outer = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = list(model.parameters())
    got = torch.autograd.grad(compiled(inner).square().sum(), [inner, *weights])
    want = torch.autograd.grad(model(outer).relu().square().sum(), [outer, *weights])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert a.stride() == b.stride() or 1 in a.shape
