"""Annotations of calls: `with no_fuse():`, `with fuse():`, and for how many calls one stands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import ParamSpec, TypeVar, overload

import torch
from torch.fx import Node
from torch.fx.traceback import annotate, has_preserved_node_meta, preserve_node_meta

from tofuse.ir.fusion_hints import FUSE, NO_FUSE

P = ParamSpec("P")
R = TypeVar("R")

KEY = "tofuse"  # in the annotations that torch carries from the program to the graph's nodes
TIMES = "tofuse_times"


class Hint(AbstractContextManager[None]):
    """What is in force inside a `with`, or in calls of the functions it decorates."""

    def __init__(self, word: str, *, everywhere: bool = False) -> None:
        self._word = word
        self._everywhere = everywhere  # also in programs whose capture begins inside
        self._inside: list[ExitStack] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        hint = no_fuse if self._word == NO_FUSE else fuse

        @functools.wraps(function)
        def hinted(*args: P.args, **kwargs: P.kwargs) -> R:
            with hint():
                return function(*args, **kwargs)

        return hinted

    def __enter__(self) -> None:
        inside = ExitStack()
        if has_preserved_node_meta() or self._everywhere:
            inside.enter_context(preserve_node_meta())
            inside.enter_context(annotate({KEY: self._word}))
        self._inside.append(inside)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside.pop().__exit__(kind, error, trace)


@overload
def no_fuse() -> Hint: ...
@overload
def no_fuse(function: Callable[P, R], /) -> Callable[P, R]: ...
def no_fuse(function: Callable[P, R] | None = None, /) -> Hint | Callable[P, R]:
    """Every operator inside, and what the backward makes of it, is a kernel or a call of its own.

    Also a decorator. Outside of a compiled function it does nothing. A hint inside another one
    takes its place.
    """
    if function is not None:
        return Hint(NO_FUSE)(function)
    if torch.compiler.is_compiling():  # Dynamo follows no context managers but its own
        return annotate({KEY: NO_FUSE})  # type: ignore[return-value]
    return Hint(NO_FUSE)


@overload
def fuse() -> Hint: ...
@overload
def fuse(function: Callable[P, R], /) -> Callable[P, R]: ...
def fuse(function: Callable[P, R] | None = None, /) -> Hint | Callable[P, R]:
    """The operators inside are fused wherever that is possible, whether it seems to gain or not.

    A warning says what could not be fused, and why. Also a decorator. Outside of a compiled
    function it does nothing. A hint inside another one takes its place.
    """
    if function is not None:
        return Hint(FUSE)(function)
    if torch.compiler.is_compiling():
        return annotate({KEY: FUSE})  # type: ignore[return-value]
    return Hint(FUSE)


def hint_of(node: Node) -> str:
    """`fuse`; `no_fuse` and the operator called, for that holds for each alone; or nothing."""
    notes = node.meta.get("custom")
    word = notes.get(KEY) if isinstance(notes, dict) else None
    if word == NO_FUSE:
        return f"{NO_FUSE} {_user_call(node)}"
    return FUSE if word == FUSE else ""


def stands_for(node: Node, times: int) -> None:
    """Note that a call is in the place of so many."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), TIMES: times}


def times_of(node: Node) -> int:
    """How many calls of the user's program a node is a part of."""
    notes = node.meta.get("custom")
    times = notes.get(TIMES, 1) if isinstance(notes, dict) else 1
    return times if isinstance(times, int) else 1


def _user_call(node: Node) -> str:
    """A name for the operator that the user, or autograd, called, alike for all it consists of."""
    called = node.meta.get("original_aten", node.target)
    if called is node.target:
        return node.name
    functions = node.meta.get("source_fn_stack") or [("", None)]
    return f"{called} {functions[-1][0]} {node.meta.get('seq_nr')}"
