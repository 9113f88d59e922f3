"""Dynamo: what a backend needs of it beside `torch.compile`."""

from __future__ import annotations

from torch._dynamo import config as dynamo_config
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.eval_frame import innermost_fn
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.source import LocalSource
from torch._dynamo.types import GuardFilterEntry
from torch._dynamo.utils import counters, graph_break_reasons, preserve_rng_state
from torch.fx import Node

__all__ = [
    "GuardFilterEntry",
    "LocalSource",
    "TorchDynamoException",
    "compile_lock",
    "counters",
    "dynamo_config",
    "get_source",
    "graph_break_reasons",
    "innermost_fn",
    "preserve_rng_state",
    "set_source",
]


def get_source(argument: Node) -> object:
    """Return where Dynamo takes an argument of a program from; None if it says nothing."""
    return getattr(argument, "_dynamo_source", None)


def set_source(argument: Node, source: object) -> None:
    """Set where Dynamo takes an argument of a program from."""
    argument._dynamo_source = source
