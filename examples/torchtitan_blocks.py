"""Compile a transformer block by block, as torchtitan does: equal blocks share their kernels."""

from collections.abc import Callable

import torch
from torch import nn

REQUIRES = ()
WIDTH = 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(k): Block() for k in range(4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a training step that returns the gradient of the input."""
    torch.manual_seed(0)
    net = Model()
    if backend is not None:
        for block in net.layers.values():
            block.compile(backend=backend, fullgraph=True)
    x = torch.randn(8, 64, WIDTH, requires_grad=True)

    def train() -> torch.Tensor:
        (grad,) = torch.autograd.grad(net(x).square().mean(), x)
        return grad

    return train


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    print(f"largest difference from eager {(actual - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
