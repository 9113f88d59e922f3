"""The flat arguments and results of a compiled program's calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value
from tofuse.ir.size_expression import SizeSource


@dataclass(frozen=True)
class CallSignature:
    """Arguments and results: tensors, sizes or None; and the source of each size symbol.

    `mutations` are pairs of an argument and its value when the program ends. `duplicates` are pairs
    of positions: a result that repeats an earlier result's value in another tensor object, and the
    first result that is this object. `saved` names the arguments that the forward saved for this
    backward: nothing else need hold them.
    """

    arguments: tuple[Value | Dim | None, ...]
    results: tuple[Value | Dim | None, ...]
    symbols: Mapping[str, SizeSource]
    mutations: tuple[tuple[Value, Value], ...] = ()
    duplicates: tuple[tuple[int, int], ...] = ()
    saved: frozenset[str] = frozenset()
