"""Hooks of modules that come and go: looked for when one was registered, not at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from torch._dynamo.types import GuardFilterEntry
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

P = ParamSpec("P")
R = TypeVar("R")
Filter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]
EMPTY = "EMPTY_NN_MODULE_HOOKS_DICT"  # Dynamo's guard that a module has no hooks of a kind


def without_hook_guards(compiled: Callable[[Filter | None], Callable[P, R]]) -> Callable[P, R]:
    """A call of `compiled(which)`, where `which` says which of its guards Dynamo shall keep.

    Dynamo guards at every call that no module has hooks that had none when it was compiled, six
    guards a module. Those are left out, and torch's number of hooks so far is looked at instead.
    Where one of these modules has got a hook, all is compiled once more, with the guards.
    """
    places: dict[tuple[Module, str], None] = {}
    seen = -1

    def keep(guards: Sequence[GuardFilterEntry]) -> list[bool]:
        nonlocal seen
        seen = -1
        modules = {g.name: g.value for g in guards if isinstance(g.value, Module)}
        return [g.guard_type != EMPTY or not watch(g, modules) for g in guards]

    def watch(guard: GuardFilterEntry, modules: dict[str, Module]) -> bool:
        owner, _, kind = guard.name.rpartition(".")
        module = modules.get(owner)
        if getattr(module, kind, None) is not guard.value:
            return False
        assert module is not None
        places[module, kind] = None
        return True

    inner = compiled(keep)

    def look_first(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal seen, inner
        if seen != RemovableHandle.next_id:
            seen = RemovableHandle.next_id
            if any(getattr(module, kind) for module, kind in places):
                places.clear()
                inner = compiled(None)
        return inner(*args, **kwargs)

    return look_first
