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
    Stmt,
    Store,
    Uniform,
    buffers_of,
    index_axes,
    iteration_axes,
    live_statements,
    make_affine,
    show_kernel,
    show_stmt,
    stmt_dims,
)

__all__ = [
    "AffineExpr", "Arg", "Axis", "Buffer", "Compute", "Definition", "Gather", "InRange", "Iota",
    "Kernel", "Load", "Reduce", "Stmt", "Store", "Uniform", "buffers_of", "index_axes",
    "iteration_axes", "live_statements", "make_affine", "show_kernel", "show_stmt", "stmt_dims",
]  # fmt: skip
