"""Compile programs with tofuse, and print as JSON what changed in torch before, during and after.

Run as `python -m tests.support.guest`. First the same programs are compiled by a backend of
PyTorch, which imports what torch imports when needed, and shows what torch itself changes while it
compiles: that alone may differ during our compilations.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from inspect import signature

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch.utils.checkpoint import checkpoint

from tests.support.torch_state import State, differences, snapshot

found: set[tuple[str, str]] = set()
quiet: State = {}
looks: Counter[int] = Counter()  # by line


def look(*ignored: object) -> bool:
    """Record what differs from `quiet` now; called at different times of a compilation.

    From one line it looks four times, because a look takes 0.2 s.
    """
    line = sys._getframe(1).f_lineno
    looks[line] += 1
    if quiet and looks[line] <= 4:
        found.update(differences(quiet, snapshot()))
    return False


@torch.compiler.assume_constant_result
def look_in_dynamo() -> int:
    """Look while Dynamo traces."""
    look()
    return 1


class Net(nn.Module):
    """A module with a checkpoint and a product, at which an executor looks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        look_in_dynamo()
        y = checkpoint(lambda t: torch.tanh(t @ t), x, use_reentrant=False)
        return F.layer_norm(self.linear(y), (4,)).sin()


def with_break(x: torch.Tensor) -> torch.Tensor:
    """Build a layer, which breaks the graph."""
    y: torch.Tensor = nn.Linear(4, 4)(x.sin()).cos() * look_in_dynamo()
    return y


def losses(x: torch.Tensor) -> torch.Tensor:
    """Compute a loss whose decomposition tofuse replaces."""
    target = torch.tensor([[0, 1, -1, -1]] * 4)
    return F.multilabel_margin_loss(x @ x, target) + x.chunk(2)[1].exp().sum()


def checkpointed_losses(x: torch.Tensor) -> torch.Tensor:
    """Compute a loss behind a checkpoint, and look."""
    look()
    y = checkpoint(lambda t: torch.tanh(t @ t), x, use_reentrant=False)
    return losses(y).exp()


def compile_all(compile: Callable[..., Callable[..., torch.Tensor]]) -> None:
    """Compile the programs, forward and backward, and a hook and another size."""
    net = Net()
    compiled = compile(net)
    for size in (4, 4):
        compiled(torch.randn(size, 4, requires_grad=True)).sum().backward()
    net.linear.register_forward_hook(lambda module, args, output: output * 2)
    compiled(torch.randn(4, 4)).sum().backward()
    for function in (with_break, losses):
        compile(function)(torch.randn(4, 4, requires_grad=True)).sum().backward()


def compile_ours() -> None:
    """Compile everything with tofuse, with both captures and with hints."""
    import tofuse

    tofuse.register_executor("looking", ops=["aten.mm"], run=torch.mm, check=look)
    options = {"executors": ("looking", "llvm", "aten")}
    compile_all(lambda f: tofuse.compile(f, **options))

    def hinted(x: torch.Tensor) -> torch.Tensor:
        with tofuse.no_fuse():
            y = (x @ x).sin()
        return y.cos()

    tofuse.compile(hinted, **options)(torch.randn(4, 4))
    efficient = tofuse.memory_efficient_fusion(checkpointed_losses, **options)
    efficient(torch.randn(4, 4, requires_grad=True)).sum().backward()
    tofuse.explain(losses)(torch.randn(4, 4))


def main() -> None:
    """Print what changed in torch."""

    def compiler(gm: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        look()
        boxed: Callable[..., object] = make_boxed_func(gm)
        return boxed

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        look()
        result: torch.Tensor = NotImplemented
        return result

    reference = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        decompositions={torch.ops.aten.mm.default: product},
    )
    has_limit = "recompile_limit" in signature(torch.compile).parameters
    compile = partial(
        torch.compile, backend=reference, **{"recompile_limit": 99} if has_limit else {}
    )
    for _ in range(2):  # the first time fills caches and imports modules
        torch._dynamo.reset()
        found.clear()
        looks.clear()
        quiet.clear()
        quiet.update(snapshot())
        compile_all(compile)
        traced = aot_function(
            checkpointed_losses,
            fw_compiler=compiler,  # type: ignore[arg-type]  # names of arguments
            bw_compiler=compiler,  # type: ignore[arg-type]
        )
        traced(torch.randn(4, 4, requires_grad=True)).sum().backward()
        after = differences(quiet, snapshot())
    by_torch = set(found)
    found.clear()
    looks.clear()
    quiet.update(snapshot())
    compile_ours()
    result = {
        "torch during": sorted(by_torch),
        "during": sorted(found - by_torch),
        "after": sorted(differences(quiet, snapshot()) - after),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
