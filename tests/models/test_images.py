"""Image networks that no workload covers: gradients against float64, odd sizes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class UNet(nn.Module):
    """Downsample, upsample, and concatenate with the input of the downsampling."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(True))
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.fuse = nn.Conv2d(16, 4, 3, padding=1, groups=2)
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        skip = self.first(x)
        up = F.interpolate(self.up(self.down(skip)), size=skip.shape[-2:])
        return self.last(self.fuse(torch.cat([skip, up], 1)).tanh())


class Depthwise(nn.Module):
    """A depthwise convolution, then pointwise ones, as in MobileNet and ConvNeXt."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 4, 4)
        self.window = nn.Conv2d(12, 12, 7, padding=3, groups=12)
        self.norm = nn.LayerNorm(12)
        self.wide, self.narrow = nn.Linear(12, 48), nn.Conv2d(48, 12, 1, stride=2)

    def forward(self, x):
        y = self.window(self.stem(x)).permute(0, 2, 3, 1)
        y = F.gelu(self.wide(self.norm(y))).permute(0, 3, 1, 2)
        return self.narrow(y).mean((2, 3))


@pytest.mark.broad(4)
@pytest.mark.parametrize("shape", [(2, 3, 33, 47), (1, 3, 16, 29), (3, 3, 32, 32)])
@pytest.mark.parametrize("family", [UNet, Depthwise])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_as_accurate_as_eager(family, shape, dtype):
    torch.manual_seed(5)
    model = family().to(dtype)
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    x = torch.randn(shape, dtype=dtype)
    result = tofuse.compile(model)(x)
    grad_output = torch.randn(result.shape)
    expected = eager(x)
    assert result.stride() == expected.stride()
    for y in (result, exact(x.double()), expected):
        (y * grad_output.to(y.dtype)).sum().backward()
    for (name, p), q, e in zip(
        model.named_parameters(), eager.parameters(), exact.parameters(), strict=True
    ):
        scale = e.grad.abs().max() + 1e-3
        error, eager_error = (p.grad - e.grad).abs().max(), (q.grad - e.grad).abs().max()
        assert error <= 4 * eager_error + 1e-6 * scale, name
