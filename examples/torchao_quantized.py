"""Weights quantized by torchao: int8 and float8; dequantisation fuses with what surrounds it."""

from collections.abc import Callable

import torch
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

REQUIRES = ("torchao",)


def step(backend: str | None = "tofuse", *, float8: bool = False) -> Callable[[], torch.Tensor]:
    """Return a call of a quantized network."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    ).eval()
    quantize_(net, Float8WeightOnlyConfig() if float8 else Int8WeightOnlyConfig())
    call = net if backend is None else torch.compile(net, backend=backend)
    x = torch.randn(64, 256)
    return torch.no_grad()(lambda: call(x))


def main() -> None:
    for float8 in (False, True):
        actual, expected = step("tofuse", float8=float8)(), step(None, float8=float8)()
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
        difference = (actual - expected).abs().max()
        print(f"{'float8' if float8 else 'int8'}: largest difference from eager {difference:.1e}")


if __name__ == "__main__":
    main()
