"""Weights quantized by HQQ, optimum-quanto and bitsandbytes, and by a class of ten lines."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from bitsandbytes.nn import Linear4bit, Params4bit
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from optimum.quanto import freeze, qint8, quantize

REQUIRES = ("bitsandbytes", "hqq", "optimum")


class Int4(torch.nn.Module):
    """A linear layer with two codes in a byte, and a scale for 32 of them."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        groups = linear.weight.detach().unflatten(1, (-1, 32))
        self.scale = torch.nn.Buffer(groups.abs().amax(2, keepdim=True) / 7)
        codes = (groups / self.scale).round().to(torch.uint8) + 8
        self.codes = torch.nn.Buffer(codes[..., ::2] | (codes[..., 1::2] << 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = torch.stack((self.codes & 15, self.codes >> 4), -1).flatten(2)
        return F.linear(x, ((codes.to(x.dtype) - 8) * self.scale).flatten(1))


def by_hqq(linear: torch.nn.Linear) -> torch.nn.Module:
    """Return the layer with codes of four bits; HQQ decodes them with operators of PyTorch."""
    config = BaseQuantizeConfig(nbits=4, group_size=64, axis=1)
    return HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu")


def by_quanto(linear: torch.nn.Linear) -> torch.nn.Module:
    """Return the layer with int8 weights; quanto multiplies them by an operator of its own."""
    layer = torch.nn.Sequential(linear)
    quantize(layer, weights=qint8)
    freeze(layer)
    return layer


def by_bitsandbytes(linear: torch.nn.Linear) -> torch.nn.Module:
    """Return the layer with NF4 weights; bitsandbytes decodes them by an operator of its own."""
    layer = Linear4bit(linear.in_features, linear.out_features, bias=False, quant_type="nf4")
    layer.weight = Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
    return layer.to("cpu")


LAYERS = {"int4 by hand": Int4, "HQQ": by_hqq, "quanto": by_quanto, "bitsandbytes": by_bitsandbytes}


def network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    make = LAYERS[name]
    first = torch.nn.Linear(256, 1024, bias=False)
    second = torch.nn.Linear(1024, 256, bias=False)
    return torch.nn.Sequential(make(first), torch.nn.GELU(), make(second)).eval()


def step(backend: str | None = "tofuse", name: str = "int4 by hand") -> Callable[[], torch.Tensor]:
    """Return a call of a quantized network."""
    net, x = network(name), torch.randn(1, 256)
    call = net if backend is None else torch.compile(net, backend=backend)
    return torch.no_grad()(lambda: call(x))


def main() -> None:
    for name in LAYERS:
        actual, expected = step("tofuse", name)(), step(None, name)()
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
        difference = (actual - expected).abs().max()
        print(f"{name}: largest difference from eager {difference:.1e}")


if __name__ == "__main__":
    main()
