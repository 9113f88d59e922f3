"""Export a compiled module to ONNX: the export sees the module that is not compiled."""

from collections.abc import Callable

import torch

import tofuse

REQUIRES = ("onnx", "onnxscript")


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU()).eval()


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call of the module, which is exported, too."""
    net = model()
    call = net if backend is None else torch.compile(net, backend=backend)
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    return torch.no_grad()(lambda: call(x))


def main() -> None:
    x = torch.randn(64, 256)
    names = []
    for net in (model(), tofuse.compile(model())):
        program = torch.onnx.export(net, (x,), dynamo=True, verbose=False)
        names.append([node.op_type for node in program.model.graph])
    assert names[0] == names[1]
    print(f"operators of the ONNX program: {', '.join(names[1])}")


if __name__ == "__main__":
    main()
