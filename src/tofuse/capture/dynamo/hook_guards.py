"""Module hooks checked when a hook was registered, instead of by guards at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from tofuse.torch_internals.dynamo import GuardFilterEntry

P = ParamSpec("P")
R = TypeVar("R")
GuardFilter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]
NO_HOOKS_GUARD = "EMPTY_NN_MODULE_HOOKS_DICT"  # Dynamo's guard that a module has no hooks of a kind


def without_hook_guards(
    compile_with: Callable[[GuardFilter | None], Callable[P, R]],
) -> Callable[P, R]:
    """Return the function of `compile_with(guard_filter)`, without guards on absent hooks.

    Dynamo guards at every call that modules without hooks still have none: six guards a module.
    The filter drops these guards. Instead, each call compares torch's counter of registered hooks.
    If one of these modules has got a hook, the function is compiled again, with all guards.
    """
    unhooked: dict[tuple[Module, str], None] = {}
    checked_hook_id = -1

    def guard_filter(guards: Sequence[GuardFilterEntry]) -> list[bool]:
        nonlocal checked_hook_id
        checked_hook_id = -1
        modules = {g.name: g.value for g in guards if isinstance(g.value, Module)}
        return [g.guard_type != NO_HOOKS_GUARD or not watch(g, modules) for g in guards]

    def watch(guard: GuardFilterEntry, modules: dict[str, Module]) -> bool:
        owner, _, kind = guard.name.rpartition(".")
        module = modules.get(owner)
        if getattr(module, kind, None) is not guard.value:
            return False
        assert module is not None
        unhooked[module, kind] = None
        return True

    compiled = compile_with(guard_filter)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal checked_hook_id, compiled
        if checked_hook_id != RemovableHandle.next_id:
            checked_hook_id = RemovableHandle.next_id
            if any(getattr(module, kind) for module, kind in unhooked):
                unhooked.clear()
                compiled = compile_with(None)
        return compiled(*args, **kwargs)

    return call
