"""Dynamo: what a backend needs of it beside `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from traceback import FrameSummary
from typing import TYPE_CHECKING, Protocol

import torch
from torch.fx import Node

from tofuse.torch_internals.private_names import TRACING, essential, itself, private, stand_in

BREAKS = "the report lists no graph breaks"


class GraphBreak(Protocol):
    """Why a graph was broken, and where."""

    reason: str
    user_stack: Sequence[FrameSummary]


if TYPE_CHECKING:
    from torch._dynamo.source import LocalSource as LocalSource
    from torch._dynamo.types import GuardFilterEntry as GuardFilterEntry
else:
    GuardFilterEntry = object  # only in annotations
    (LocalSource,) = essential("torch._dynamo.source", "LocalSource")

compile_lock: AbstractContextManager[object] = private(
    "torch._dynamo.convert_frame", "compile_lock", TRACING, nullcontext()
)
innermost_fn = private(
    "torch._dynamo.eval_frame", "innermost_fn", "a call takes about 1 us more", itself
)
TorchDynamoException: type[Exception] = private(
    "torch._dynamo.exc",
    "TorchDynamoException",
    "PyTorch runs programs on which Dynamo would try again",
    stand_in("TorchDynamoException"),
)
counters: Mapping[str, Mapping[str, int]] = private(
    "torch._dynamo.utils", "counters", BREAKS, {"unimplemented": {}}
)
graph_break_reasons: Sequence[GraphBreak] = private(
    "torch._dynamo.utils", "graph_break_reasons", BREAKS, ()
)
preserve_rng_state: Callable[[], AbstractContextManager[object]] = private(
    "torch._dynamo.utils",
    "preserve_rng_state",
    "a recompilation takes longer",
    torch.random.fork_rng,
)


def get_source(argument: Node) -> object:
    """Return where Dynamo takes an argument of a program from; None if it says nothing."""
    return getattr(argument, "_dynamo_source", None)


def set_source(argument: Node, source: object) -> None:
    """Set where Dynamo takes an argument of a program from."""
    argument._dynamo_source = source
