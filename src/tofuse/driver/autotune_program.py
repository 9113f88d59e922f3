"""Autotune a program: time it against PyTorch at the first call, and keep the faster one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import GraphModule

from tofuse.cache.store import Store
from tofuse.driver.autotune import ATEN, Choice, choose
from tofuse.runtime.cuda import synchronize
from tofuse.runtime.timing import TimedCall, real_tensors
from tofuse.torch_internals.trees import tree_leaves

Call = Callable[..., object]


class ProgramAutotuner:
    """Runs the faster of the compiled and the eager program; the first call times both.

    `on_fallback` is called if the eager program is faster.
    """

    def __init__(
        self, compiled: Call, eager: GraphModule, key: Sequence[str], store: Store
    ) -> None:
        self.compiled, self.eager, self.key, self.store = compiled, eager, key, store
        self.fastest: Call | None = None
        self.on_fallback: Callable[[Choice], None] = lambda choice: None

    def __call__(self, *args: object) -> object:
        if self.fastest is None:
            self.fastest = self._choose(args)
        return self.fastest(*args)

    def _choose(self, args: Sequence[object]) -> Call:
        """Time both programs on copies of the arguments, with the backward if there is one."""
        grad = torch.is_grad_enabled()
        types = [_describe(a) for a in args]
        candidates = [
            (Choice(), lambda: _step(self.compiled, args, grad)),
            (Choice(ATEN), lambda: _step(self.eager.forward, args, grad)),
        ]
        with real_tensors():
            choice = choose(candidates, (*self.key, self.eager.code, *types, str(grad)), self.store)
        if choice.kind != ATEN:
            return self.compiled
        self.on_fallback(choice)
        return self.eager.forward


def _step(call: Call, args: Sequence[object], grad: bool) -> TimedCall:
    """Return a call on copies of the arguments that also computes their gradients."""
    copies = {id(a): _copy(a) for a in args if isinstance(a, torch.Tensor)}
    copied_args = [copies.get(id(a), a) for a in args]
    leaves = [c for c in copies.values() if grad and c.requires_grad]

    def run() -> object:
        with torch.set_grad_enabled(grad):
            results = [x for x in tree_leaves(call(*copied_args)) if isinstance(x, torch.Tensor)]
            outputs = [x for x in results if x.requires_grad]
            if leaves and outputs:
                ones = [torch.ones_like(x) for x in outputs]
                results += torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
            synchronize()
            return results

    return run


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _describe(a: object) -> str:
    if isinstance(a, torch.Tensor):
        return f"{a.dtype} {tuple(a.shape)} {a.stride()} {a.requires_grad} {a.device}"
    return repr(a)
