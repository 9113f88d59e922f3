"""Train with Lightning: its Trainer takes a compiled LightningModule, its Fabric any module."""

import logging
from collections.abc import Callable

import lightning
import torch

import tofuse

REQUIRES = ("lightning",)


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024),
            torch.nn.Linear(1024, 256),
        )  # fmt: skip

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return (self.layers(batch) - batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call that trains for eight batches and returns the sum of the weights."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    net = Net()
    # Lightning compiles `training_step` of what torch.compile returns.
    module = net if backend is None else torch.compile(net, backend=backend)
    batches = torch.utils.data.DataLoader(torch.randn(8 * 64, 256), batch_size=64)

    def train() -> torch.Tensor:
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, batches)
        return sum(p.detach().double().sum() for p in net.parameters())

    return train


def fabric_loss() -> torch.Tensor:
    """Return the loss of a step with Fabric."""
    torch.manual_seed(0)
    fabric = lightning.Fabric(accelerator="cpu")
    net = tofuse.compile(Net().layers)
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters()))
    loss = net(torch.randn(64, 256)).square().mean()
    fabric.backward(loss)
    optimizer.step()
    return loss.detach()


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    print(f"sum of the weights {actual:.4f}, in eager {expected:.4f}")
    print(f"Fabric: loss {fabric_loss():.6f}")


if __name__ == "__main__":
    main()
