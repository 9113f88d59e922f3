"""Dynamo's guards and guarded code: what a program on disk needs to be found without Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Protocol

import torch

from tofuse.errors import UnsupportedError
from tofuse.torch_internals.dispatch import KEEPING
from tofuse.torch_internals.dynamo import GuardFilterEntry
from tofuse.torch_internals.private_names import always, private

MISSING = object()


class _CacheEntry(Protocol):
    code: CodeType


class _StateGuard(Protocol):
    def check(self) -> bool: ...

    def __getstate__(self) -> object: ...


class _NoState:
    """The state of torch that equals no other."""

    def check(self) -> bool:
        return False

    def __getstate__(self) -> str:
        return ""


_cache_entries: Callable[[CodeType], Sequence[_CacheEntry]] = private(
    "torch._dynamo.eval_frame", "_debug_get_cache_entry_list", KEEPING, always(())
)
_traced_code: Callable[[], Sequence[CodeType] | None] = private(
    "torch._dynamo.utils", "get_traced_code", KEEPING, always(None)
)
_settings: Callable[[], Mapping[str, object] | None] = private(
    "torch._dynamo.config", "get_config_copy", KEEPING, always(None)
)
# The state of torch when it is made (grad mode, autocast, number of threads and others), and
# whether it is the same now.
GlobalStateGuard: Callable[[], _StateGuard] = private(
    "torch._C._dynamo.guards", "GlobalStateGuard", KEEPING, _NoState
)


_frames: object = private("torch._dynamo", "eval_frame", KEEPING, None)


def is_stance_default() -> bool:
    """Return whether `torch.compiler.set_stance` leaves it to Dynamo who runs calls."""
    return getattr(getattr(_frames, "_stance", None), "stance", None) == "default"


def compiled_bytecode(code: CodeType) -> list[CodeType]:
    """Return the bytecode of Dynamo's programs for a code object."""
    return [entry.code for entry in _cache_entries(code)]


def traced_code() -> list[CodeType]:
    """Return the code objects that Dynamo has traced for the program that is being compiled."""
    return list(_traced_code() or ())


def capture_settings() -> str:
    """Return torch's release, and how Dynamo is configured: the settings that are plain values."""
    settings = (_settings() or {}).items()
    plain = sorted((k, v) for k, v in settings if isinstance(v, (bool, int, float, str)))
    return f"{torch.__version__} {plain}"


def state_text(state: _StateGuard) -> str:
    """Return the state of torch that a guard compares, as text; empty if it is unknown."""
    return str(state.__getstate__())


def guard_expression(guard: GuardFilterEntry) -> str:
    """Return the expression that a guard checks, in which `L` and `G` are locals and globals."""
    return str(guard.orig_guard.name)


def is_on_array(guard: GuardFilterEntry) -> bool:
    """Return whether a guard is on the tensor of a NumPy array, which each check makes anew."""
    return "___from_numpy(" in guard_expression(guard)


def guard_argument(guard: GuardFilterEntry, name: str, default: object = MISSING) -> object:
    """Return an argument of a guard, such as the key that a dict must contain.

    Raises UnsupportedError if torch does not say it, and there is no default.
    """
    words: Mapping[str, object] = getattr(guard.orig_guard.create_fn, "keywords", {})
    value = words.get(name, default)
    if value is MISSING:
        raise UnsupportedError(f"a guard of type {guard.guard_type} without {name!r}")
    return value
