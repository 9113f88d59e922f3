"""Module hooks checked when a hook was registered, instead of by guards at every call."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from tofuse.capture.fx.location import is_library_file
from tofuse.errors import CaptureError
from tofuse.torch_internals.dynamo import (
    GuardFilterEntry,
    InternalTorchDynamoError,
    TorchRuntimeError,
    static_sizes,
    update_compiled_wrapper,
    without_profiler_marks,
)
from tofuse.torch_internals.dynamo_guards import is_on_array

P = ParamSpec("P")
R = TypeVar("R")
GuardFilter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]
NO_HOOKS_GUARD = "EMPTY_NN_MODULE_HOOKS_DICT"  # Dynamo's guard that a module has no hooks of a kind


def recompile_for_hooks(
    compile_with: Callable[[GuardFilter | None], Callable[P, R]],
    observe: Callable[[Sequence[GuardFilterEntry]], None],
) -> Callable[P, R]:
    """Return the function of `compile_with(guard_filter)`, compiled again for new module hooks.

    `observe` receives the guards of each program.

    By default Dynamo does not notice hooks that modules get later; its guards would check six
    tables a module at every call. Instead, each call compares torch's counter of registered hooks.
    If it has grown, and a table that was empty has got a hook, the function is compiled again.

    With a filter, Dynamo makes all guards twice, which fails for guards on a new object, such as
    the tensor `x.T`. Such a function is compiled without a filter. For NumPy arrays the filter
    raises an error, because Dynamo would log its own, with a traceback.

    DTensor raises TypeError for symbolic strides, which it cannot hash. A call that Dynamo cannot
    trace for a TypeError is traced again without symbolic sizes.
    """
    empty_tables: dict[int, object] = {}  # by id
    checked_hook_id = -1

    def guard_filter(guards: Sequence[GuardFilterEntry]) -> list[bool]:
        nonlocal checked_hook_id
        checked_hook_id = -1
        if any(map(is_on_array, guards)):
            raise CaptureError("a guard on a NumPy array cannot be made twice")
        observe(guards)
        empty = [g.value for g in guards if g.guard_type == NO_HOOKS_GUARD]
        empty_tables.update((id(table), table) for table in empty)
        return [g.guard_type != NO_HOOKS_GUARD for g in guards]

    compiled = compile_with(guard_filter)

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
        except (InternalTorchDynamoError, TorchRuntimeError) as error:
            if _has_run_user_code(error):
                raise
            symbolic_strides = isinstance(error, TorchRuntimeError)
            if symbolic_strides and not isinstance(_first_error(error), TypeError):
                raise
        if symbolic_strides:
            with static_sizes():
                return compiled(*args, **kwargs)
        unfiltered = compile_with(None)
        result = unfiltered(*args, **kwargs)
        compiled = unfiltered
        return result

    return update_compiled_wrapper(call, compiled)


def _has_run_user_code(error: Exception) -> bool:
    """Return whether a frame outside torch and this package led to an error."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return not all(is_library_file(frame.f_code.co_filename) for frame in frames)


def _first_error(error: BaseException) -> BaseException:
    """Return the error in whose handling this one was raised, and so on; or the error itself."""
    while error.__context__ is not None:
        error = error.__context__
    return error
