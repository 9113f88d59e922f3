"""Networks of images that no workload has: gradients against float64, odd sizes, shared results."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class UNet(nn.Module):
    """Down, up again, and joined with what was there before."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(True))
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.join = nn.Conv2d(16, 4, 3, padding=1, groups=2)
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        before = self.first(x)
        up = F.interpolate(self.up(self.down(before)), size=before.shape[-2:])
        return self.last(self.join(torch.cat([before, up], 1)).tanh())


class Depthwise(nn.Module):
    """A window for each channel, then channels by a point: as in mobile and in modern networks."""

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
def test_results_and_gradients(family, shape, dtype):
    torch.manual_seed(5)
    model = family().to(dtype)
    exact, theirs = copy.deepcopy(model).double(), copy.deepcopy(model)
    x = torch.randn(shape, dtype=dtype)
    ours = tofuse.compile(model)(x)
    given = torch.randn(ours.shape)
    wanted = theirs(x)
    assert ours.stride() == wanted.stride()
    for result in (ours, exact(x.double()), wanted):
        (result * given.to(result.dtype)).sum().backward()
    for (name, p), q, e in zip(
        model.named_parameters(), theirs.parameters(), exact.parameters(), strict=True
    ):
        scale = e.grad.abs().max() + 1e-3
        error, usual = (p.grad - e.grad).abs().max(), (q.grad - e.grad).abs().max()
        assert error <= 4 * usual + 1e-6 * scale, name
