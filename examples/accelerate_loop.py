"""A training loop with accelerate; a plugin compiles what it prepares."""

from collections.abc import Callable

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import TorchDynamoPlugin

from tofuse.integrations.accelerate import plugin

REQUIRES = ("accelerate",)


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return one training step, which returns the loss."""
    torch.manual_seed(0)
    AcceleratorState._reset_state(True)  # only because this script makes several Accelerators
    chosen = plugin() if backend == "tofuse" else TorchDynamoPlugin(backend=backend or "no")
    accelerator = Accelerator(cpu=True, dynamo_plugin=chosen)
    net = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024),
        torch.nn.Linear(1024, 256),
    )  # fmt: skip
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    batch = torch.randn(64, 256)

    def train() -> torch.Tensor:
        loss = (net(batch) - batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train


def main() -> None:
    compiled, eager = step("tofuse"), step(None)
    for _ in range(3):
        actual, expected = compiled(), eager()
        torch.testing.assert_close(actual, expected)
        print(f"loss {actual:.6f}, in eager {expected:.6f}")


if __name__ == "__main__":
    main()
