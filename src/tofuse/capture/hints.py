"""Annotations of calls: `with no_fuse():`, `with fuse():`, and for how many calls one stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.fx import Node
from torch.fx.traceback import annotate, has_preserved_node_meta

from tofuse.ir.hints import FUSE, NO_FUSE

KEY = "tofuse"  # in the annotations that torch carries from the program to the graph's nodes
TIMES = "tofuse_times"


@contextmanager
def no_fuse() -> Iterator[None]:
    """Every operator inside, and what the backward makes of it, is a kernel or a call of its own.

    Also a decorator. Outside of a compiled function it does nothing. A hint inside another one
    takes its place.
    """
    if torch.compiler.is_compiling() or has_preserved_node_meta():
        with annotate({KEY: NO_FUSE}):
            yield
    else:
        yield


@contextmanager
def fuse() -> Iterator[None]:
    """The operators inside are fused wherever that is possible, whether it seems to gain or not.

    A warning says what could not be fused, and why. Also a decorator. Outside of a compiled
    function it does nothing. A hint inside another one takes its place.
    """
    if torch.compiler.is_compiling() or has_preserved_node_meta():
        with annotate({KEY: FUSE}):
            yield
    else:
        yield


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
