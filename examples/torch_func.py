"""torch.func: per-sample gradients, compiled; transforms of a compiled function."""

from collections.abc import Callable

import torch
from torch.func import functional_call, grad, hessian, vmap

import tofuse

REQUIRES = ()


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call that computes the gradient of each of 64 samples."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    samples = torch.randn(64, 64)

    def loss(parameters: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return functional_call(net, parameters, (sample,)).square().sum()

    gradients = vmap(grad(loss), in_dims=(None, 0))
    call = gradients if backend is None else torch.compile(gradients, backend=backend)
    return lambda: call(parameters, samples)["0.weight"]


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    print(f"per-sample gradients: largest difference {(actual - expected).abs().max():.1e}")

    def energy(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    x = torch.randn(5)
    torch.testing.assert_close(hessian(tofuse.compile(energy))(x), hessian(energy)(x))
    print("the hessian of a compiled function is as in eager")


if __name__ == "__main__":
    main()
