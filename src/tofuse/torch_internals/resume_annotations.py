"""A patch that keeps fusion hints in force after a graph break inside them.

Replaces `FxTracebackAnnotateVariable.reconstruct_type`. Dynamo traces a hint as one of its own
annotations. At a graph break it leaves the annotation and has no name by which to enter it again in
the resume function. Without the patch, Dynamo skips the whole function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._dynamo.eval_frame import skip_code
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.ctx_manager import FxTracebackAnnotateVariable
from torch.compiler import is_compiling

from tofuse.hints import (
    HINT_KEY,
    FusionHint,
    fuse,
    no_fuse,
)
from tofuse.ir.fusion_hints import FUSE, NO_FUSE

if TYPE_CHECKING:
    from torch._dynamo.codegen import PyCodegen


def resume_fusion_hints() -> None:
    """Let Dynamo re-enter fusion hints in every resume function it compiles from now on."""
    FxTracebackAnnotateVariable.reconstruct_type = _reconstruct_type  # type: ignore[method-assign]
    for function in (no_fuse, fuse, reenter_no_fuse, reenter_fuse):
        skip_code(function.__code__)  # a call from plain Python is not a program to compile


def reenter_no_fuse(key: str) -> FusionHint:
    """Return the hint that a resume function enters; Dynamo passes the keys of its annotation.

    Outside of Dynamo, the call that broke the graph runs inside the hint, and may call functions
    that are compiled by themselves.
    """
    return no_fuse() if is_compiling() else FusionHint(NO_FUSE, whole_programs=True)


def reenter_fuse(key: str) -> FusionHint:
    """Return the hint that a resume function enters; see `reenter_no_fuse`."""
    return fuse() if is_compiling() else FusionHint(FUSE, whole_programs=True)


_torch_reconstruct_type = FxTracebackAnnotateVariable.reconstruct_type


def _reconstruct_type(self: FxTracebackAnnotateVariable, codegen: PyCodegen) -> None:
    if self.target_values.keys() != {HINT_KEY}:
        return _torch_reconstruct_type(self, codegen)
    reenter = reenter_fuse if self.target_values[HINT_KEY] == FUSE else reenter_no_fuse
    codegen(AttrSource(codegen.tx.import_source(__name__), reenter.__name__))
    return None
