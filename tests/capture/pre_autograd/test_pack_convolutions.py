"""Convolutions with weights that are packed once: results, chains, and what is left alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tofuse.torch_internals.packed_convolutions import can_pack

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.skipif(not can_pack(torch.float32), reason="this torch packs no weights"),
]
CHANNELS = 8


class Block(nn.Module):
    """A stem, a depthwise and a dilated convolution, with norms, an activation and a residual."""

    def __init__(self, activation=nn.SiLU, bias=False, in_place=False):
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, 2, 1, bias=bias)
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, groups=CHANNELS)
        self.dilated = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=2, dilation=2, bias=bias)
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(3))
        self.activation, self.in_place = activation(), in_place

    def forward(self, x):
        a, b, c = self.norms
        x = self.activation(a(self.stem(x)))
        y = c(self.dilated(F.relu(b(self.depthwise(x)))))
        if self.in_place:
            y += x
        else:
            y = x + y
        return y, self.dilated(y)


def evaluated(dtype=torch.float32, **options):
    block = Block(**options).eval().to(dtype)
    for state in block.norms.state_dict().values():
        if state.is_floating_point():
            nn.init.uniform_(state, 0.5, 2)
    return block


def frozen(model, **options):
    return tofuse.compile(model, freeze=True, hand_back=False, **options)


def notes(fn, *inputs, **options):
    return " ".join(n for g in tofuse.explain(fn, **options)(*inputs).graphs for n in g.notes)


@pytest.mark.broad(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 16, 16), (1, 3, 17, 9), (3, 3, 1, 1), (0, 3, 8, 8)])
@pytest.mark.parametrize(
    "activation",
    [nn.SiLU, nn.Hardswish, nn.ReLU, nn.ReLU6, nn.GELU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU],
)
def test_results_match_eager(activation, shape, in_place, dtype):
    if not can_pack(dtype):
        pytest.skip("this processor has no convolutions of this dtype")
    model = evaluated(dtype, activation=activation, in_place=in_place, bias=in_place)
    x = torch.randn(shape).to(dtype)
    compiled = frozen(model)
    with torch.no_grad():
        exact, want, got = copy.deepcopy(model).double()(x.double()), model(x), compiled(x)
    for a, b, c in zip(got, want, exact, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        ours, eager, size = (t.square().mean().sqrt() for t in (a - c, b - c, c))
        rounding = torch.finfo(dtype).eps * size  # of the weights, once more
        assert x.numel() == 0 or ours <= 2 * eager + rounding


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "activation", [nn.SiLU, nn.Hardswish, nn.ReLU, nn.ReLU6, nn.GELU, nn.Sigmoid, nn.LeakyReLU]
)
def test_special_values(activation, value):
    model, x = evaluated(activation=activation), torch.randn(1, 3, 9, 9)
    x[0, 1, 4, 4] = value
    with torch.no_grad():
        for got, want in zip(frozen(model)(x), model(x), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_all_convolutions_with_windows_are_packed():
    model, x = evaluated(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert "4 convolutions are packed once" in notes(model, x, freeze=True)
        torch._dynamo.reset()
        assert "packed" not in notes(model, x)


def test_channels_last_and_symbolic_sizes():
    model = evaluated().to(memory_format=torch.channels_last)
    compiled = frozen(model, dynamic=True)
    for batch, side in ((1, 16), (3, 21), (2, 8)):
        x = torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)
        with torch.no_grad():
            for got, want in zip(compiled(x), model(x), strict=True):
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "f",
    [
        lambda conv, x: conv(x) + x.relu_().sum(),  # written between the convolution and the sum
        lambda conv, x: (y := conv(x)) * y + y,
        lambda conv, x: conv(x).add(conv(x), alpha=2),
        lambda conv, x: torch.add(conv(x), conv(x)).relu_(),
        lambda conv, x: F.leaky_relu(conv(x), 0.3, True),
        lambda conv, x: torch.stack([conv(x), conv(x).sigmoid()]),
    ],
)
def test_what_reads_the_result(f):
    conv = nn.Conv2d(4, 4, 3, padding=1)
    x = torch.randn(2, 4, 9, 9)
    with torch.no_grad():
        got = frozen(lambda x: f(conv, x))(x.clone())
        torch.testing.assert_close(got, f(conv, x.clone()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "f",
    [
        lambda conv, single, x, other: other + conv(x),
        lambda conv, single, x, other: (other + conv(x)).reshape(2, -1),
        lambda conv, single, x, other: conv(x) + other.to(memory_format=torch.channels_last),
        lambda conv, single, x, other: F.silu(single(x)),
        lambda conv, single, x, other: single(x).sigmoid(),
    ],
)
def test_strides_match_eager(f, layout):
    conv, single = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 1, 3)
    x, other = torch.randn(2, 4, 9, 9).to(memory_format=layout), torch.randn(2, 4, 9, 9)
    with torch.no_grad():
        got = frozen(lambda x, y: f(conv, single, x, y), strict=True)(x, other)
        want = f(conv, single, x, other)
    strides = zip(got.stride(), want.stride(), want.shape, strict=True)
    assert all(a == b for a, b, size in strides if size > 1)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_roundings_of_eager():
    model, x = evaluated(torch.bfloat16), torch.randn(2, 3, 16, 16).bfloat16()
    with torch.no_grad():
        plain = tofuse.compile(model, hand_back=False, precision="eager")(x)
        torch._dynamo.reset()
        for got, want in zip(frozen(model, precision="eager")(x), plain, strict=True):
            assert torch.equal(got, want)


def test_programs_with_a_backward_are_left_alone():
    model, other = evaluated(), evaluated()
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 16, 16)
    assert "has a backward" in notes(model, x, freeze=True)
    torch._dynamo.reset()
    frozen(model)(x)[0].sum().backward()
    other(x)[0].sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
