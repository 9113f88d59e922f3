"""Small networks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from suites.never_slower.program import Program, module


class _Branches(nn.Module):
    """Modules of one input, whose results are combined."""

    def __init__(self, combine: Callable[[list[Tensor]], Tensor], *branches: nn.Module) -> None:
        super().__init__()
        self.combine, self.branches = combine, nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return self.combine([branch(x) for branch in self.branches])


class _Recurrent(nn.Module):
    """The last state of a recurrent network, and a layer on it."""

    def __init__(self, network: nn.RNNBase, classes: int) -> None:
        super().__init__()
        self.network, self.head = network, nn.Linear(network.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.network(x)
        scores: Tensor = self.head(states[:, -1])
        return scores


class _SelfAttention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projection, self.output = nn.Linear(columns, 3 * columns), nn.Linear(columns, columns)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.projection(x).chunk(3, -1)
        )
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.output(found.transpose(1, 2).flatten(2))
        return result


class _Transpose(nn.Module):
    """A network over the second dimension."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.network(x.transpose(1, 2))
        return result.transpose(1, 2)


class _UNet(nn.Module):
    """Down, up, and the input of each level beside its result."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _block(3, channels)
        self.second = _block(channels, 2 * channels)
        self.last = nn.Conv2d(3 * channels, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        above = self.first(x)
        below = F.interpolate(self.second(F.max_pool2d(above, 2)), scale_factor=2)
        result: Tensor = self.last(torch.cat([above, below], 1))
        return result


def _block(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


def _plus(*layers: nn.Module) -> nn.Module:
    """Return a residual block."""
    return _Branches(sum_of, nn.Identity(), nn.Sequential(*layers))


def sum_of(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0) if len(parts) > 2 else parts[0] + parts[1]


def product_of(parts: list[Tensor]) -> Tensor:
    return parts[0] * parts[1]


def channels_of(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, 1)


def _feed_forward(columns: int) -> nn.Module:
    return _plus(
        nn.LayerNorm(columns), nn.Linear(columns, 4 * columns), nn.GELU(),
        nn.Linear(4 * columns, columns),
    )  # fmt: skip


def _squeeze(channels: int) -> nn.Module:
    gate = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels // 4, 1), nn.ReLU(),
        nn.Conv2d(channels // 4, channels, 1), nn.Sigmoid(),
    )  # fmt: skip
    return _Branches(product_of, nn.Identity(), gate)


def _inverted_residual(channels: int) -> nn.Module:
    wide = 4 * channels
    return _plus(
        nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
        nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide),
        nn.ReLU6(), nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
    )  # fmt: skip


NETWORKS: dict[str, Program] = {
    "MLP": module(
        lambda: nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        ),
        (128, 784),
    ),
    "deep narrow MLP": module(
        lambda: nn.Sequential(*[_plus(nn.Linear(64, 64), nn.Tanh()) for _ in range(12)]), (64, 64)
    ),
    "LeNet": module(
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 10),
        ),
        (64, 1, 28, 28),
    ),
    "VGG block": module(
        lambda: nn.Sequential(_block(16, 32), _block(32, 32), nn.MaxPool2d(2)), (4, 16, 48, 48)
    ),
    "ResNet block": module(
        lambda: nn.Sequential(_plus(_block(32, 32), nn.Conv2d(32, 32, 3, padding=1)), nn.ReLU()),
        (8, 32, 32, 32),
    ),
    "ResNet bottleneck": module(
        lambda: _plus(
            nn.Conv2d(128, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), _block(32, 32),
            nn.Conv2d(32, 128, 1), nn.BatchNorm2d(128),
        ),
        (8, 128, 16, 16),
    ),
    "inverted residual": module(lambda: _inverted_residual(24), (8, 24, 28, 28)),
    "squeeze and excite": module(lambda: _squeeze(64), (8, 64, 28, 28)),
    "fire module": module(
        lambda: nn.Sequential(
            nn.Conv2d(64, 16, 1), nn.ReLU(),
            _Branches(channels_of, nn.Conv2d(16, 64, 1), nn.Conv2d(16, 64, 3, padding=1)),
            nn.ReLU(),
        ),
        (8, 64, 28, 28),
    ),
    "inception module": module(
        lambda: _Branches(
            channels_of, nn.Conv2d(64, 32, 1), _block(64, 32),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(64, 32, 1)),
        ),
        (4, 64, 28, 28),
    ),
    "dense block": module(
        lambda: nn.Sequential(
            *[
                _Branches(channels_of, nn.Identity(), _block(32 + 16 * k, 16))
                for k in range(4)
            ]
        ),
        (4, 32, 28, 28),
    ),
    "ConvNeXt block": module(
        lambda: _plus(
            nn.Conv2d(64, 64, 7, padding=3, groups=64), nn.GroupNorm(1, 64), nn.Conv2d(64, 256, 1),
            nn.GELU(), nn.Conv2d(256, 64, 1),
        ),
        (4, 64, 28, 28),
    ),
    "UNet": module(lambda: _UNet(16), (2, 3, 64, 64)),
    "convolutional autoencoder": module(
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1),
            nn.Sigmoid(),
        ),
        (8, 3, 48, 48),
    ),
    "transformer layer": module(
        lambda: nn.Sequential(
            _plus(nn.LayerNorm(256), _SelfAttention(256, 8)), _feed_forward(256)
        ),
        (4, 128, 256),
    ),
    "transformer layer of a word": module(
        lambda: nn.Sequential(
            _plus(nn.LayerNorm(256), _SelfAttention(256, 8)), _feed_forward(256)
        ),
        (1, 1, 256),
    ),
    "mixer block": module(
        lambda: nn.Sequential(_Transpose(_feed_forward(64)), _feed_forward(128)), (8, 64, 128)
    ),
    "LSTM": module(lambda: _Recurrent(nn.LSTM(64, 64, batch_first=True), 10), (16, 32, 64)),
    "GRU": module(lambda: _Recurrent(nn.GRU(64, 64, batch_first=True), 10), (16, 32, 64)),
}  # fmt: skip
