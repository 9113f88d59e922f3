"""Module hooks checked when a hook was registered, instead of by guards at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from tofuse.capture.dynamo.capture_errors import other_ways, run_first, shortened
from tofuse.errors import CaptureError
from tofuse.torch_internals.dynamo import (
    TRACE_ERRORS,
    GuardFilterEntry,
    static_sizes,
    update_compiled_wrapper,
    without_profiler_marks,
)
from tofuse.torch_internals.dynamo_guards import is_on_array

P = ParamSpec("P")
R = TypeVar("R")
GuardFilter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]
NO_HOOKS_GUARD = "EMPTY_NN_MODULE_HOOKS_DICT"  # Dynamo's guard that a module has no hooks of a kind


def _refuse_arrays(guards: Sequence[GuardFilterEntry]) -> None:
    """Raise CaptureError for guards on NumPy arrays, so that there is no filter of guards.

    With one, Dynamo makes all guards twice. That fails for the tensor of an array, which is a new
    one each time, and Dynamo would log an error with a traceback.
    """
    if any(map(is_on_array, guards)):
        raise CaptureError("a guard on a NumPy array cannot be made twice")


def recompile_for_hooks(
    compile_with: Callable[[GuardFilter | None], Callable[P, R]],
    observe: Callable[[Sequence[GuardFilterEntry]], None],
    eager: Callable[..., R] | None = None,
) -> Callable[P, R]:
    """Return the function of `compile_with(guard_filter)`, compiled again for new module hooks.

    `observe` receives the guards of each program.

    By default Dynamo does not notice hooks that modules get later; its guards would check six
    tables a module at every call. Instead, each call compares torch's counter of registered hooks.
    If it has grown, and a table that was empty has got a hook, the function is compiled again.

    What Dynamo cannot trace is traced in another way, or runs in eager: see `other_ways`.
    """
    empty_tables: dict[int, object] = {}  # by id
    checked_hook_id = -1

    def guard_filter(guards: Sequence[GuardFilterEntry]) -> list[bool]:
        nonlocal checked_hook_id
        checked_hook_id = -1
        _refuse_arrays(guards)
        observe(guards)
        empty = [g.value for g in guards if g.guard_type == NO_HOOKS_GUARD]
        empty_tables.update((id(table), table) for table in empty)
        return [g.guard_type != NO_HOOKS_GUARD for g in guards]

    compiled = compile_with(guard_filter)

    def static(*args: P.args, **kwargs: P.kwargs) -> R:
        with static_sizes():
            return compiled(*args, **kwargs)

    def unfiltered(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal compiled
        without_filter = compile_with(None)
        result = without_filter(*args, **kwargs)
        compiled = without_filter
        return result

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal checked_hook_id, compiled
        try:
            if checked_hook_id == RemovableHandle.next_id:
                return compiled(*args, **kwargs)
            checked_hook_id = RemovableHandle.next_id
            if any(empty_tables.values()):
                empty_tables.clear()
                compiled = compile_with(guard_filter)
            if is_dynamo_compiling():
                return compiled(*args, **kwargs)
            with without_profiler_marks():
                return compiled(*args, **kwargs)
        except TRACE_ERRORS as error:
            ways = other_ways(error, static, unfiltered, eager)
            if not ways:
                raise shortened(error)  # noqa: B904  # the same error
        return run_first(ways, args, kwargs)

    return update_compiled_wrapper(call, compiled)
