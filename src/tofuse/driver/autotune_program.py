"""A compiled program against PyTorch itself, at its first call: the faster one stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from tofuse.cache.store import Store
from tofuse.driver.autotune import ATEN, Choice, choose
from tofuse.runtime.cuda import synchronize
from tofuse.runtime.timing import TimedCall, real_tensors

Call = Callable[..., object]


class ProgramAutotuner:
    """Calls whoever won; until the first call nobody has."""

    def __init__(
        self, compiled: Call, eager: GraphModule, key: Sequence[str], store: Store
    ) -> None:
        self.compiled, self.eager, self.key, self.store = compiled, eager, key, store
        self.winner: Call | None = None
        self.lost: Callable[[Choice], None] = lambda choice: None

    def __call__(self, *args: object) -> object:
        if self.winner is None:
            self.winner = self._decide(args)
        return self.winner(*args)

    def _decide(self, args: Sequence[object]) -> Call:
        """Time both on copies of the arguments, with the backward if there is one."""
        grad = torch.is_grad_enabled()
        shapes = [_described(a) for a in args]
        candidates = [
            (Choice(), lambda: _step(self.compiled, args, grad)),
            (Choice(ATEN), lambda: _step(self.eager.forward, args, grad)),
        ]
        with real_tensors():
            choice = choose(
                candidates, (*self.key, self.eager.code, *shapes, str(grad)), self.store
            )
        if choice.kind != ATEN:
            return self.compiled
        self.lost(choice)
        return self.eager.forward


def _step(call: Call, args: Sequence[object], grad: bool) -> TimedCall:
    """A call on copies, and gradients of what it gives for those that require any."""
    copies = {id(a): _copy(a) for a in args if isinstance(a, torch.Tensor)}
    given = [copies.get(id(a), a) for a in args]
    wanted = [c for c in copies.values() if grad and c.requires_grad]

    def run() -> object:
        with torch.set_grad_enabled(grad):
            leaves = [x for x in tree_leaves(call(*given)) if isinstance(x, torch.Tensor)]
            outputs = [x for x in leaves if x.requires_grad]
            if wanted and outputs:
                ones = [torch.ones_like(x) for x in outputs]
                leaves += torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
            synchronize()
            return leaves

    return run


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _described(a: object) -> str:
    if isinstance(a, torch.Tensor):
        return f"{a.dtype} {tuple(a.shape)} {a.stride()} {a.requires_grad} {a.device}"
    return repr(a)
