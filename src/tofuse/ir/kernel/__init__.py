"""Kernel: one fused loop nest as statements over named axes, before any loop order is chosen."""

from tofuse.ir.kernel.data import (
    Affine,
    Arg,
    Axis,
    Buffer,
    Compute,
    Definition,
    Inside,
    Iota,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Take,
    Uniform,
    affine,
    buffers_of,
    iteration_axes,
    live,
    own_axes,
    show_kernel,
    show_stmt,
    stmt_dims,
)

__all__ = [
    "Affine", "Arg", "Axis", "Buffer", "Compute", "Definition", "Inside", "Iota", "Kernel", "Load",
    "Reduce", "Stmt", "Store", "Take", "Uniform", "affine", "buffers_of", "iteration_axes", "live",
    "own_axes", "show_kernel", "show_stmt", "stmt_dims",
]  # fmt: skip
