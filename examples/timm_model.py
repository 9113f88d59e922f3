"""Classify images with a model of timm."""

from collections.abc import Callable

import timm
import torch

REQUIRES = ("timm", "torchvision")


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call that classifies two images."""
    torch.manual_seed(0)
    net = timm.create_model("convnext_atto", pretrained=False).eval()
    call = net if backend is None else torch.compile(net, backend=backend)
    images = torch.randn(2, 3, 96, 96)
    return torch.no_grad()(lambda: call(images))


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    print(f"largest difference from eager {(actual - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
