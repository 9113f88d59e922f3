"""Channels-last images inside a program: results, gradients and their strides match eager."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
import tofuse.driver.compile_graph
from benchmarks.allocations import allocations
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
NOTE = "channels last"


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
def test_results_gradients_and_strides_match_eager(shape, train):
    model, other = layers().train(train), layers().train(train)
    other.load_state_dict(model.state_dict())
    x = torch.randn(shape)
    compiled = tofuse.compile(model)
    out, want = compiled(x), other(x)
    assert NOTE in notes(model, x)
    assert out.stride() == want.stride()
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
    weights = torch.randn_like(want)
    (out * weights).sum().backward()
    (want * weights).sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert a.grad.stride() == b.grad.stride()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)


def test_symbolic_sizes():
    model = layers().eval()
    compiled = tofuse.compile(model, dynamic=True)
    for side in (16, 21, 33):
        x = torch.randn(2, 3, side, side)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_view_that_needs_the_default_layout_prevents_conversion():
    model = layers()

    def f(x):
        return model(x).view(x.shape[0], -1)

    x = torch.randn(2, 3, 20, 20)
    assert NOTE not in notes(f, x)
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(f)(x), f(x), rtol=1e-4, atol=1e-4)


def test_write_through_a_view_prevents_conversion():
    model = layers().requires_grad_(False)

    def f(x):
        y = model(x)
        y.flatten(1).mul_(2)
        return y

    x = torch.randn(2, 3, 20, 20)
    assert NOTE not in notes(f, x)
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(f)(x), f(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: F.conv2d(F.conv2d(x, w[:, :, :1, :1]), w[:, :, :1, :1]),  # matrix products
        lambda x, w: F.conv2d(F.conv2d(x, w), w).transpose(1, 2),  # not contiguous
        lambda x, w: torch.as_strided(F.conv2d(F.conv2d(x, w), w), (2, 8), (8, 1)),
    ],
)
def test_unsupported_programs_are_not_converted(f):
    x, w = torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3)
    assert NOTE not in notes(f, x, w)
    torch._dynamo.reset()
    assert_as_eager(f, x, w, rtol=1e-3, atol=1e-3)


def test_channels_last_inputs_are_kept():
    model = layers().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 20, 20).to(memory_format=torch.channels_last)
    out = tofuse.compile(model)(x)
    assert out.stride() == model(x).stride()
    torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-4)


def test_several_results_and_a_returned_argument():
    a, b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def f(x):
        y = a(x)
        return y, b(y) + x, y.mean((2, 3)), x

    x = torch.randn(2, 3, 12, 12)
    assert NOTE in notes(f, x)
    torch._dynamo.reset()
    for got, want in zip(tofuse.compile(f)(x), f(x), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_aliases_among_results_are_preserved():
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def f(x):
        y = second(first(x))
        return y, y[0], y.flatten(1)

    with torch.no_grad():
        whole, part, flat = tofuse.compile(f)(torch.randn(2, 3, 12, 12))
        whole.zero_()
    assert not part.any() and not flat.any()


def test_compiler_errors_are_not_mistaken_for_view_errors(monkeypatch):
    """Only an error while tracing the converted program prevents the conversion."""
    compiled = []

    def fail(*args):
        compiled.append(args)
        raise RuntimeError("no view of this")

    monkeypatch.setattr(tofuse.driver.compile_graph, "convert", fail)
    with pytest.raises(Exception, match="no view of this"):
        tofuse.compile(layers().eval(), strict=True)(torch.randn(2, 3, 20, 20))
    assert len(compiled) == 1


@pytest.mark.parametrize("side", [2, 40])
def test_large_weights_prevent_conversion(side):
    """Each weight would be converted at every call."""
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3))
    x = torch.randn(1, 64, 2 + side, 2 + side)
    text = notes(model, x)
    assert ("default layout, though" in text) == (side == 2)
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(model)(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_kernels_convert_weights(groups, needs):
    """The library would copy them at every call, into its own memory."""
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
@pytest.mark.parametrize("kind", ["plain", "pointwise", "depthwise", "transposed"])
def test_gradient_strides_match_eager(kind, bias, last):
    layers_by_kind = {
        "plain": lambda: nn.Conv2d(6, 8, 3, padding=1, bias=bias),
        "pointwise": lambda: nn.Conv2d(6, 8, 1, bias=bias),
        "depthwise": lambda: nn.Conv2d(6, 6, 3, groups=6, bias=bias),
        "transposed": lambda: nn.ConvTranspose2d(6, 4, 3, 2, bias=bias),
    }
    model, x = layers_by_kind[kind](), torch.randn(2, 6, 9, 8)
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


@pytest.mark.parametrize("shape", [(8, 3, 48, 48), (3, 3, 77, 103), (1, 3, 20, 20)])
def test_a_training_step_holds_no_copy_of_an_image_for_its_backward(shape):
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1)),
        nn.Sigmoid(),
    )
    x = torch.randn(shape, requires_grad=True)
    assert NOTE in notes(model, x)
    report = tofuse.explain(model)(x)
    assert report.saved_bytes <= report.eager_saved_bytes

    def step(call):
        return torch.autograd.grad(call(x).sum(), [x, *model.parameters()])

    compiled = tofuse.compile(model)
    torch.testing.assert_close(step(compiled), step(model), rtol=1e-3, atol=1e-4)
    assert allocations(lambda: step(compiled)).peak <= allocations(lambda: step(model)).peak + 4096


def test_a_single_convolution_is_converted_unless_it_is_trained():
    x, w = torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3)
    assert NOTE in notes(F.conv2d, x, w)
    torch._dynamo.reset()
    assert NOTE not in notes(F.conv2d, x, w.requires_grad_())
    torch._dynamo.reset()
    assert_as_eager(F.conv2d, x, w, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_images_of_bfloat16_are_converted(dtype):
    """The library has such convolutions of bfloat16 and float32."""
    x, w = torch.randn(2, 8, 9, 9).to(dtype), torch.randn(8, 8, 3, 3).to(dtype)

    def f(x, w):
        return F.conv2d(F.conv2d(x, w, padding=1).relu(), w)

    assert (NOTE in notes(f, x, w)) == (dtype is torch.bfloat16)
    torch._dynamo.reset()
    torch.testing.assert_close(tofuse.compile(f)(x, w), f(x, w), rtol=5e-2, atol=5e-1)


def separable(norm=True):
    """Return a separable block with a scale for each channel, as mobile networks have it."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=not norm),
        nn.Conv2d(8, 24, 1),
        nn.BatchNorm2d(24) if norm else nn.Identity(),
        nn.Hardswish(),
        nn.Conv2d(24, 24, 3, padding=1, groups=24),
        nn.ReLU(),
        Scaled(24),
        nn.Conv2d(24, 16, 1, stride=2),
    )


class Scaled(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x):
        means = x.mean((2, 3), keepdim=True)
        return x * F.hardsigmoid(self.expand(F.relu(self.reduce(means))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (2, 3, 17, 23), (3, 3, 1, 5), (0, 3, 8, 8)])
@pytest.mark.parametrize("norm", [True, False])
def test_separable_convolutions(norm, shape, dtype):
    model, x = separable(norm).eval().to(dtype), torch.randn(shape).to(dtype)
    with torch.no_grad():
        want, got = model(x), tofuse.compile(model, hand_back=False)(x)
        exact = separable(norm).eval().double()
        exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
        exact = exact(x.double())
    assert got.stride() == want.stride() and got.dtype == dtype
    error, eager = ((t.double() - exact).abs().amax() if t.numel() else 0 for t in (got, want))
    assert error <= 2 * eager + 1e-5


def test_separable_networks_are_converted_in_inference_only():
    model, x = separable().eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert "are channels last" in notes(model, x)
    torch._dynamo.reset()
    assert "are channels last" not in notes(model, x)
