"""Annotations of calls: `fuse` and `no_fuse` hints, and how many calls one call replaces."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import ParamSpec, TypeVar, overload

import torch
from torch.fx import Node
from torch.fx.traceback import annotate, has_preserved_node_meta, preserve_node_meta

from tofuse.errors import TofuseWarning
from tofuse.ir.fusion_hints import FUSE, NO_FUSE
from tofuse.torch_internals.dynamo import is_frame_callback_set, never_compile_frames

P = ParamSpec("P")
R = TypeVar("R")

# keys in the annotations that torch copies from the program to the graph's nodes
HINT_KEY = "tofuse"
CALL_COUNT_KEY = "tofuse_times"
UNCOMPILED = (
    "PyTorch runs the function with the hint {} in eager, for example because of a graph break "
    "inside the hint; call what breaks the graph outside of it"
)


class FusionHint(AbstractContextManager[None]):
    """A hint for the operators inside a `with` block, or in calls of a decorated function.

    Dynamo cannot resume inside a hint. It runs a function with a graph break inside a hint in
    eager; the hint then holds for the functions called inside that are compiled by themselves.
    """

    def __init__(self, word: str, *, decorates: bool = False) -> None:
        self._word = word
        self._decorates = decorates
        self._entered: list[ExitStack] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        word = self._word
        if not callable(function):
            raise TypeError(f"{word} decorates a function, not {function!r}")

        @functools.wraps(function)
        def hinted(*args: P.args, **kwargs: P.kwargs) -> R:
            with _hint(word, decorates=True):
                return function(*args, **kwargs)

        return hinted

    def __enter__(self) -> None:
        stack = ExitStack()
        compiles_calls = is_frame_callback_set()
        if compiles_calls and not self._decorates:
            warnings.warn(UNCOMPILED.format(self._word), TofuseWarning, stacklevel=2)
        if has_preserved_node_meta() or compiles_calls:
            stack.enter_context(preserve_node_meta())
            stack.enter_context(annotate({HINT_KEY: self._word}))
        self._entered.append(stack)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)


@overload
def no_fuse() -> FusionHint: ...
@overload
def no_fuse(function: Callable[P, R], /) -> Callable[P, R]: ...
def no_fuse(function: Callable[P, R] | None = None, /) -> FusionHint | Callable[P, R]:
    """Run every operator inside, and its backward, as a separate kernel or call.

    Also a decorator. Outside a compiled function it has no effect. An inner hint overrides an
    outer one.
    """
    if function is not None:
        return FusionHint(NO_FUSE)(function)
    return _hint(NO_FUSE)


@overload
def fuse() -> FusionHint: ...
@overload
def fuse(function: Callable[P, R], /) -> Callable[P, R]: ...
def fuse(function: Callable[P, R] | None = None, /) -> FusionHint | Callable[P, R]:
    """Fuse the operators inside wherever it is legal, even without a predicted gain.

    A warning names the edges that cannot be fused, with the reason. Also a decorator. Outside a
    compiled function it has no effect. An inner hint overrides an outer one.
    """
    if function is not None:
        return FusionHint(FUSE)(function)
    return _hint(FUSE)


def _hint(word: str, *, decorates: bool = False) -> FusionHint:
    if torch.compiler.is_compiling():  # Dynamo traces only context managers that it knows
        return annotate({HINT_KEY: word})  # type: ignore[return-value]
    return FusionHint(word, decorates=decorates)


def fusion_hint_of(node: Node) -> str:
    """Return the `Loc.fusion_hint` of a node: "", "fuse", or "no_fuse" and the user's call."""
    notes = node.meta.get("custom")
    word = notes.get(HINT_KEY) if isinstance(notes, dict) else None
    if word == NO_FUSE:
        return f"{NO_FUSE} {_user_call(node)}"
    return FUSE if word == FUSE else ""


def set_call_count(node: Node, count: int) -> None:
    """Record that a node replaces `count` calls of the user's program."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), CALL_COUNT_KEY: count}


def call_count(node: Node) -> int:
    """Return the number of calls of the user's program that a node replaces."""
    notes = node.meta.get("custom")
    count = notes.get(CALL_COUNT_KEY, 1) if isinstance(notes, dict) else 1
    return count if isinstance(count, int) else 1


def _user_call(node: Node) -> str:
    """Return a name of the user's or autograd's call; nodes decomposed from one call share it."""
    original = node.meta.get("original_aten", node.target)
    if original is node.target:
        return node.name
    functions = node.meta.get("source_fn_stack") or [("", None)]
    return f"{original} {functions[-1][0]} {node.meta.get('seq_nr')}"


never_compile_frames(no_fuse, fuse, _hint)  # called from plain Python, they are no programs
