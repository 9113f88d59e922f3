"""Hints that stay in force behind a graph break inside them.

Dynamo sees hints as annotations of its own, leaves those at a break and has no name to enter them
by again, for which it gives the whole function up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._dynamo.eval_frame import skip_code
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.ctx_manager import FxTracebackAnnotateVariable
from torch.compiler import is_compiling

from tofuse.hints import (
    KEY,
    Hint,
    fuse,
    no_fuse,
)
from tofuse.ir.fusion_hints import FUSE, NO_FUSE

if TYPE_CHECKING:
    from torch._dynamo.codegen import PyCodegen


def resume_hints() -> None:
    """Let Dynamo enter hints again, in whatever it compiles from now on."""
    FxTracebackAnnotateVariable.reconstruct_type = _reconstruct_type  # type: ignore[method-assign]
    for function in (no_fuse, fuse, again_no_fuse, again_fuse):
        skip_code(function.__code__)  # where Python calls it, it is no program of its own


def again_no_fuse(key: str) -> Hint:
    """As Dynamo enters it: with what it iterates over of an annotation.

    Python runs what broke the graph in it, which may call what is compiled by itself.
    """
    return no_fuse() if is_compiling() else Hint(NO_FUSE, everywhere=True)


def again_fuse(key: str) -> Hint:
    return fuse() if is_compiling() else Hint(FUSE, everywhere=True)


_plain = FxTracebackAnnotateVariable.reconstruct_type


def _reconstruct_type(self: FxTracebackAnnotateVariable, codegen: PyCodegen) -> None:
    if self.target_values.keys() != {KEY}:
        return _plain(self, codegen)
    again = again_fuse if self.target_values[KEY] == FUSE else again_no_fuse
    codegen(AttrSource(codegen.tx.import_source(__name__), again.__name__))
    return None
