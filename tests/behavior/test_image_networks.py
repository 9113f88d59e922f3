"""Small image networks of several families in inference, with and without frozen parameters."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Fire(nn.Module):
    """Squeeze to few channels, expand by two convolutions, concat."""

    def __init__(self, channels, squeezed, expanded):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.pointwise = nn.Conv2d(squeezed, expanded, 1)
        self.windowed = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.pointwise(x)), F.relu(self.windowed(x))], 1)


class Shuffle(nn.Module):
    """A separable convolution of half of the channels, which are then interleaved."""

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.first, self.last = nn.Conv2d(half, half, 1), nn.Conv2d(half, half, 1)
        self.depthwise = nn.Conv2d(half, half, 3, padding=1, groups=half)

    def forward(self, x):
        left, right = x.chunk(2, 1)
        right = self.last(F.elu(self.depthwise(F.relu6(self.first(right)))))
        n, c, h, w = x.shape
        x = torch.cat([left, right], 1).view(n, 2, c // 2, h, w)
        return x.transpose(1, 2).reshape(n, c, h, w)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 7, 3, padding=1), nn.Conv2d(7, 14, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(14, 7, 2, 2), nn.Conv2d(14, 1, 1)
        self.norm = nn.GroupNorm(7, 7)

    def forward(self, x):
        skip = F.mish(self.norm(self.first(x)))
        up = self.up(F.silu(self.down(skip)))
        return torch.sigmoid(self.last(torch.cat([skip, up], 1)))


NETWORKS = {
    "fire": lambda: nn.Sequential(
        nn.Conv2d(3, 13, 3, 2),
        *(nn.MaxPool2d(3, 2), Fire(13, 5, 11), Fire(22, 7, 9)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ),
    "shuffle": lambda: nn.Sequential(nn.Conv2d(3, 10, 5, padding=2), Shuffle(10), Shuffle(10)),
    "unet": UNet,
}
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "strided": lambda x: torch.cat([x, x], 3)[..., ::2],
}


@pytest.mark.broad(8)
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [(1, 36, 42), (2, 64, 38), (3, 8, 8), (0, 16, 16)])
@pytest.mark.parametrize("name", NETWORKS)
def test_inference(name, size, dtype, layout, freeze):
    model = NETWORKS[name]().eval().to(dtype)
    batch, *sides = size
    x = LAYOUTS[layout](torch.randn(batch, 3, *sides).to(dtype))
    compiled = tofuse.compile(model, freeze=freeze, hand_back=False, strict=True)
    with torch.no_grad():
        want, got = model(x), compiled(x)
        exact = copy.deepcopy(model).double()(x.double())
    assert got.dtype == want.dtype and got.shape == want.shape
    strides = zip(got.stride(), want.stride(), want.shape, strict=True)
    assert not want.numel() or all(a == b for a, b, n in strides if n > 1)
    if want.numel():
        ours, eager, scale = (t.abs().amax() for t in (got - exact, want - exact, exact))
        reference = 16 * torch.finfo(torch.float64).eps * scale  # it rounds, too
        assert ours <= 3 * eager + torch.finfo(dtype).eps * scale + reference
