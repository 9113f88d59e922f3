"""Kernel: the statements of one fused loop nest over named axes, without a loop order."""

from tofuse.ir.kernel.data import (
    AffineExpr,
    Arg,
    Axis,
    Buffer,
    Compute,
    Definition,
    Gather,
    InRange,
    Iota,
    Kernel,
    Load,
    Reduce,
    StatementMap,
    Stmt,
    Store,
    Uniform,
    buffers_of,
    iteration_axes,
    live_statements,
    make_affine,
    show_kernel,
    show_stmt,
)

__all__ = [
    "AffineExpr", "Arg", "Axis", "Buffer", "Compute", "Definition", "Gather", "InRange", "Iota",
    "Kernel", "Load", "Reduce", "StatementMap", "Stmt", "Store", "Uniform", "buffers_of",
    "iteration_axes", "live_statements", "make_affine", "show_kernel", "show_stmt",
]  # fmt: skip
