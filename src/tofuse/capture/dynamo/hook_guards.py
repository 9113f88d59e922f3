"""Module hooks checked when a hook was registered, instead of by guards at every call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from tofuse.torch_internals.dynamo import GuardFilterEntry, without_profiler_marks

P = ParamSpec("P")
R = TypeVar("R")
GuardFilter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]
NO_HOOKS_GUARD = "EMPTY_NN_MODULE_HOOKS_DICT"  # Dynamo's guard that a module has no hooks of a kind


def recompile_for_hooks(compile_with: Callable[[GuardFilter], Callable[P, R]]) -> Callable[P, R]:
    """Return the function of `compile_with(guard_filter)`, compiled again for new module hooks.

    By default Dynamo does not notice hooks that modules get later; its guards would check six
    tables a module at every call. Instead, each call compares torch's counter of registered hooks.
    If it has grown, and a table that was empty has got a hook, the function is compiled again.
    """
    empty_tables: dict[int, object] = {}  # by id
    checked_hook_id = -1

    def guard_filter(guards: Sequence[GuardFilterEntry]) -> list[bool]:
        nonlocal checked_hook_id
        checked_hook_id = -1
        empty = [g.value for g in guards if g.guard_type == NO_HOOKS_GUARD]
        empty_tables.update((id(table), table) for table in empty)
        return [g.guard_type != NO_HOOKS_GUARD for g in guards]

    compiled = compile_with(guard_filter)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal checked_hook_id, compiled
        if checked_hook_id != RemovableHandle.next_id:
            checked_hook_id = RemovableHandle.next_id
            if any(empty_tables.values()):
                empty_tables.clear()
                compiled = compile_with(guard_filter)
            if not is_dynamo_compiling():
                with without_profiler_marks():
                    return compiled(*args, **kwargs)
        return compiled(*args, **kwargs)

    return functools.update_wrapper(call, compiled)  # Dynamo inlines it as it does torch.compile's
