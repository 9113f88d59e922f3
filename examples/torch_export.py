"""torch.export: compile an exported program, and export a compiled module."""

from collections.abc import Callable

import torch

import tofuse

REQUIRES = ()


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512))


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call of an exported program."""
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    net = torch.export.export(model().eval(), (x,)).module()
    call = net if backend is None else torch.compile(net, backend=backend)
    return torch.no_grad()(lambda: call(x))


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    compiled = tofuse.compile(model().eval())
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(compiled, (x,))
    torch.testing.assert_close(exported.module()(x), compiled(x), rtol=1e-4, atol=1e-5)
    print(f"in and out: {len(exported.graph_module.graph.nodes)} nodes")


if __name__ == "__main__":
    main()
