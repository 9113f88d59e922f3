"""Autotune a program: time it against PyTorch at the first call, and keep the faster one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.fx import GraphModule

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cpu.runtime.cpu_timing import interleaved_us
from tofuse.backends.cpu.runtime.launch import thread_count
from tofuse.backends.cuda.runtime.cuda import synchronize
from tofuse.backends.launcher import TimedCall
from tofuse.cache.programs import source_digest
from tofuse.capture.fx.devices import is_supported
from tofuse.config import Config
from tofuse.cost.machine_source import assumed_machine
from tofuse.cost.thresholds import CPU_CANDIDATE_TIMING_S
from tofuse.disk_store import store_of
from tofuse.driver.choice import ATEN, Choice, choose
from tofuse.driver.pipeline import cost_oracle
from tofuse.runtime.timing import real_tensors
from tofuse.torch_internals.memory import tensor_version
from tofuse.torch_internals.trees import tensor_leaves

Call = Callable[..., object]


def fastest_program(
    compiled: Call, eager: GraphModule, args: Sequence[object], config: Config
) -> tuple[Call, str]:
    """Return the faster of the compiled and the eager program, and the measured times.

    Both run on copies of the arguments, with the backward if there is one. Nothing is timed while
    a CUDA graph is captured.
    """
    grad = torch.is_grad_enabled()
    target = host_target(thread_count())
    oracle = cost_oracle(target, assumed_machine(target, config))
    devices = {f"{a.device}": a.device for a in args if isinstance(a, torch.Tensor)}
    known = sorted(name for name, d in devices.items() if is_supported(d))
    backends = list(map(oracle.backend, known))
    for obstacle in (b.timing_obstacle() for b in backends):
        if obstacle is not None:
            return compiled, obstacle
    types = [_describe(a) for a in args]
    names = (repr(target), *(word for b in backends for word in b.timing_key()))
    options = config.precision, str(config.memory_budget), str(config.fuel), *config.executors
    key = (*names, torch.__version__, source_digest(), *options, eager.code, *types, str(grad))
    candidates = [
        (Choice(), lambda: _step(compiled, args, grad)),
        (Choice(ATEN), lambda: _step(eager.forward, args, grad)),
    ]
    with real_tensors(list(devices.values())):
        choice = choose(
            candidates,
            key,
            store_of(config),
            partial(interleaved_us, seconds=CPU_CANDIDATE_TIMING_S),
        )
    return (eager.forward if choice.kind == ATEN else compiled), choice.why


def _step(call: Call, args: Sequence[object], grad: bool) -> TimedCall:
    """Return a call on copies of the arguments that also computes their gradients.

    Each run begins with the same values: what a run writes into a copy is put back after it.
    """
    originals = list({id(a): a for a in args if isinstance(a, torch.Tensor)}.values())
    copies = {id(a): _copy(a) for a in originals}
    copied_args = [copies.get(id(a), a) for a in args]
    leaves = [c for c in copies.values() if grad and c.requires_grad]
    inner = {id(copies[id(a)]) for a in args if isinstance(a, torch.Tensor) and not a.is_leaf}

    def without_history(x: object) -> object:
        """Return an argument that a run may write, whatever earlier runs wrote into it."""
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) in inner:
            return x.clone()
        return x if x.requires_grad else x.detach()

    def run() -> object:
        versions = [tensor_version(x) for x in copies.values()]
        with torch.set_grad_enabled(grad):
            results = tensor_leaves(call(*map(without_history, copied_args)))
            outputs = [x for x in results if x.requires_grad]
            if leaves and outputs:
                ones = [torch.ones_like(x) for x in outputs]
                results += torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
        for original, copy, version in zip(originals, copies.values(), versions, strict=True):
            if tensor_version(copy) != version:
                copy.detach().copy_(original)
        synchronize()
        return results

    return run


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _describe(a: object) -> str:
    if isinstance(a, torch.Tensor):
        return f"{a.dtype} {tuple(a.shape)} {a.stride()} {a.requires_grad} {a.device}"
    return repr(a)
