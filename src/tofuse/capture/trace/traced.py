"""Capture as a pure function: traced once for each kind of arguments, guarded by these alone.

No bytecode is looked at: the function runs once on fake tensors. Guards are on what goes in:
dtype, shape, strides, device and requires_grad of tensors, which arguments are one tensor, other
arguments by value, grad mode, autocast, and the training flags and hooks of modules. Tensors that
the function closes over, parameters of modules among them, are inputs by identity: gradients flow
to them, and changes in place are seen; another tensor under the same name is not, but for the
parameters, buffers and submodules of a module that is itself compiled. Python numbers, and
globals of other kinds, are constants from the first call on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType

import torch
from numpy import ndarray
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C._dynamo.guards import TensorGuards
from torch._dynamo.convert_frame import compile_lock
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tofuse.capture.lower.executor_claims import Claims, nobody
from tofuse.capture.trace.arguments import (
    Call,
    Keywords,
    Signature,
    signature_of,
    take_apart,
)
from tofuse.capture.trace.free_variables import closed_over
from tofuse.capture.trace.joint_trace import CompileGraph, compile_program
from tofuse.capture.trace.rollback import same_fields, same_wishes, unchanged

grad_enabled = torch.is_grad_enabled


@dataclass(frozen=True)
class Slot:
    """Where a module keeps a parameter or buffer."""

    held: Mapping[str, torch.Tensor | None]
    name: str


@dataclass
class Entry:
    """One compiled program and the state it is valid in."""

    guard: TensorGuards
    run: Callable[..., object]
    closed: tuple[torch.Tensor, ...]
    slots: tuple[Slot, ...]
    tied: tuple[tuple[Slot, Slot], ...]  # that hold one tensor
    kept: tuple[object, ...]  # arguments of the signature, of which another may not have the id
    same: tuple[tuple[int, torch.Tensor], ...]  # arguments that the function also closes over
    memory: tuple[tuple[int, int], ...] | None  # how they share it, where one is written into
    grad: bool
    autocast: torch.dtype | None
    default: torch.dtype
    modes: tuple[object, ...]

    def extra(self) -> tuple[torch.Tensor | None, ...]:
        """The tensors that are read beside the arguments, as they are now."""
        if not self.slots:
            return self.closed
        return (*self.closed, *[s.held.get(s.name) for s in self.slots])

    def state_fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether all is as when it was traced that the guard does not look at."""
        if self.default is not torch.get_default_dtype():
            return False
        if self.autocast is not None and self.autocast is not torch.get_autocast_dtype("cpu"):
            return False
        if self.same and any(tensors[k] is not t for k, t in self.same):
            return False
        if self.tied and any(a.held.get(a.name) is not b.held.get(b.name) for a, b in self.tied):
            return False
        return self.memory is None or self.memory == sharing(tensors)


class Traced:
    """A callable that traces, compiles and caches."""

    def __init__(
        self,
        function: Callable[..., object],
        compile_graph: CompileGraph,
        module: torch.nn.Module | None = None,
        memory_budget: float | None = None,
        claims: Claims = nobody,
    ) -> None:
        self.function, self.compile_graph, self.claims = function, compile_graph, claims
        self.memory_budget = memory_budget
        self.module = module
        self.plain: list[Entry] = []  # for calls with distinct tensors and nothing else
        self.other: dict[Signature, list[Entry]] = {}
        self._look()

    def _look(self) -> None:
        """Learn which modules there are; what was compiled for others is no longer valid."""
        self.modules = [] if self.module is None else list(self.module.modules())
        self.tree = [(h, tuple(h.values())) for m in self.modules if (h := m._modules)]
        self.hooks = [h for m in self.modules for h in _hooks(m)]
        self.plain.clear()
        self.other.clear()

    def __call__(self, *args: object, **kwargs: object) -> object:
        if forward_ad._current_level >= 0:  # kernels have no forward derivatives
            return self.function(*args, **kwargs)
        for held, children in self.tree:
            if tuple(held.values()) != children:
                self._look()
                break
        if not kwargs:
            grad = grad_enabled()
            for entry in self.plain:
                if entry.grad is not grad:
                    continue
                extra = entry.extra()
                try:
                    fits = entry.guard.check(*args, *extra)
                except (TypeError, RuntimeError):  # not all are tensors
                    break
                if not fits or entry.modes != self._modes():
                    continue
                if entry.state_fits(args):  # type: ignore[arg-type]  # the guard saw tensors
                    return entry.run(*args, *extra)
        return self._find(args, kwargs)

    def __reduce__(self) -> str:
        """Copied and pickled as functions are: itself, by its name."""
        return str(self.__dict__.get("__qualname__", type(self).__name__))

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., object]:
        """As a method: `self` is an argument like another."""
        return self if instance is None else MethodType(self, instance)

    def _modes(self) -> tuple[object, ...]:
        """The training flags, then the keys of the hooks that there are; () for a function."""
        if not self.modules:
            return ()
        hooked = [tuple(h) for h in self.hooks if h] if any(self.hooks) else ()
        return (*[m.training for m in self.modules], *hooked)

    def _find(self, args: tuple[object, ...], kwargs: Keywords) -> object:
        """Run any arguments; trace where there is no entry for them."""
        if transforms_active() or is_dynamo_compiling():
            return self.function(*args, **kwargs)
        signature, tensors = signature_of(args, kwargs)
        modes = self._modes()
        for entry in self.other.get(signature, ()):
            extra = entry.extra()
            if entry.grad is not grad_enabled() or entry.modes != modes:
                continue
            if any(t is None for t in extra):
                continue
            if entry.guard.check(*tensors, *extra) and entry.state_fits(tensors):
                return entry.run(*tensors, *extra)
        call = take_apart(args, kwargs)
        if not all(map(traceable, tensors)) or any(isinstance(x, ndarray) for x in call.leaves):
            return self.function(*args, **kwargs)
        held = [s.held[s.name] for s in self._slots()]
        if any(t is not None and is_lazy(t) for t in held):  # this call gives them their shapes
            return self.function(*args, **kwargs)
        with compile_lock, _tracing():
            entry, result = self._trace(call)
        entries = self.plain if call.plain else self.other.setdefault(signature, [])
        entries.insert(0, entry)
        return result

    def _trace(self, call: Call) -> tuple[Entry, object]:
        """Compile for this call; the compiled program's first result comes with it."""

        form = call.form()

        def flat(*tensors: torch.Tensor) -> object:
            args, kwargs = form.rebuild(tensors)
            with same_fields((args, kwargs)), same_wishes(tensors):
                return self.function(*args, **kwargs)

        found: list[torch.Tensor] = []
        with unchanged(self.modules, found):
            found += closed_over(flat, call.tensors)
        given = {id(t): k for k, t in enumerate(call.tensors)}
        slots: dict[int, Slot] = {}
        tied: list[tuple[Slot, Slot]] = []
        for slot in self._slots():
            tensor = slot.held[slot.name]
            if tensor is not None and (first := slots.setdefault(id(tensor), slot)) is not slot:
                tied.append((first, slot))
        closed = [t for t in found if id(t) not in given and id(t) not in slots]
        held = [t for t in found if id(t) not in given and id(t) in slots]
        tensors = [*call.tensors, *closed, *held]
        count, budget = len(call.tensors), self.memory_budget
        with unchanged(self.modules, found):
            program = compile_program(flat, tensors, count, self.compile_graph, budget, self.claims)
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        entry = Entry(
            guard=TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None),
            run=program.run,
            closed=tuple(closed),
            slots=tuple(slots[id(t)] for t in held),
            tied=tuple(tied),
            kept=tuple(x for x in call.leaves if not isinstance(x, torch.Tensor)),
            same=tuple((given[id(t)], t) for t in found if id(t) in given),
            memory=sharing(call.tensors) if program.writes else None,
            grad=grad_enabled(),
            autocast=autocast,
            default=torch.get_default_dtype(),
            modes=self._modes(),
        )
        return entry, program.first

    def _slots(self) -> list[Slot]:
        return [
            Slot(held, name)
            for module in self.modules
            for held in (module._parameters, module._buffers)
            for name in held
        ]


@contextmanager
def _tracing() -> Iterator[None]:
    """Say that something is compiled, or what Dynamo compiled raises in all other threads."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _hooks(module: torch.nn.Module) -> tuple[Mapping[int, object], ...]:
    """Where a module keeps the hooks that run in a call of it, by their keys."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    return (before, after, module._backward_pre_hooks, module._backward_hooks)


def traceable(tensor: torch.Tensor) -> bool:
    """Whether a stand-in can take an argument's place in a trace; if not, eager runs it."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return known or bool(is_traceable_wrapper_subclass(tensor))


def sharing(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """For each tensor that shares memory with another: whose, and from which element on."""
    places = [t.untyped_storage()._cdata for t in tensors]
    first = [places.index(p) for p in places]
    return tuple(
        (k, int(t.storage_offset())) if first.count(k) > 1 else (-1, 0)
        for k, t in zip(first, tensors, strict=True)
    )
