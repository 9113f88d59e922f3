"""Grouped and scaled matrix products: operands are decoded, then multiplied by PyTorch."""

from __future__ import annotations

from functools import partial

import torch

from tofuse.analysis.alias import view_chain
from tofuse.capture.lower.builder import typed_scalar
from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.elementwise_table import elementwise_node
from tofuse.frontends.items import Node, Number, OperandLike, Rule
from tofuse.frontends.lowering import Lowering
from tofuse.frontends.ops_index import index_select
from tofuse.frontends.ops_matmul import matmul
from tofuse.frontends.ops_quantize import (
    fp4_to_float,
    group_of,
    grouped_rows,
    quotient,
    round_up,
    unswizzle,
)
from tofuse.frontends.ops_shape import cat, iota_along, permute
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Scalar

NVFP4, MXFP8 = 16, 32  # elements of a block
ALIGNMENT = 8  # elements: PyTorch's grouped product wants strides that are multiples of 16 bytes


def grouped_mm(
    low: Lowering,
    mat1: OperandLike,
    mat2: OperandLike,
    offsets: OperandLike,
    scale1: OperandLike | None = None,
    scale2: OperandLike | None = None,
    alpha: OperandLike | None = None,
    bias: OperandLike | None = None,
    beta: OperandLike | None = None,
    dtype: DataType | torch.dtype = DataType.BFloat16,
    output_block_scale_size: int = 0,
    output_block_scale_dtype: DataType | torch.dtype = DataType.BFloat16,
    output_gamma: bool = False,
) -> Node | list[Node | None]:
    """Multiply groups of rows, of columns, or of the summed dimension; offsets are their ends.

    Without scales, return the product; with scales, the product and two results left out.
    """
    a, b = low.tensor(mat1, "mat1"), low.tensor(mat2, "mat2")
    ends = low.tensor(offsets, "offsets")
    if (scale1 is None) != (scale2 is None):
        raise low.error("scale1 and scale2 must be given together")
    if scale1 is None or scale2 is None:
        if a.dtype is not b.dtype:
            raise low.error(f"the operands have types {a.dtype.value} and {b.dtype.value}")
        return _grouped_product(low, a, b, ends)
    _require_plain_result(low, output_block_scale_size, output_gamma)
    factors = low.tensor(scale1, "scale1"), low.tensor(scale2, "scale2")
    low.require_equal(factors[0].shape[-1], 1, "scale1 at the summed dimension")
    low.require_equal(factors[1].shape[-2], 1, "scale2 at the summed dimension")
    op = partial(elementwise_node, low)
    by_group = a.rank == b.rank == 2  # the scales belong to the results
    left, right = low.cast(a, DataType.Float), low.cast(b, DataType.Float)
    if by_group:
        out = _grouped_product(low, left, right, ends)
        out = op("mul", op("mul", out, factors[0]), factors[1])
    else:
        left, right = op("mul", left, factors[0]), op("mul", right, factors[1])
        out = _grouped_product(low, left, right, ends)
    return [_finish(low, out, alpha, bias, beta, datatype(dtype)), None, None]


def scaled_mm(
    low: Lowering,
    mat1: OperandLike,
    mat2: OperandLike,
    scale1: OperandLike,
    scale2: OperandLike,
    alpha: OperandLike | None = None,
    bias: OperandLike | None = None,
    beta: OperandLike | None = None,
    dtype: DataType | torch.dtype = DataType.BFloat16,
    output_block_scale_size: int = 0,
    output_block_scale_dtype: DataType | torch.dtype = DataType.BFloat16,
    output_gamma: bool = False,
) -> list[Node | None]:
    """Multiply matrices with scales; return alpha * product + beta * bias, and two left out.

    Scales are one number, one for each row and column, or swizzled ones for each block.
    """
    _require_plain_result(low, output_block_scale_size, output_gamma)
    a, b = low.tensor(mat1, "mat1"), low.tensor(mat2, "mat2")
    if a.rank != 2 or b.rank != 2:
        raise low.error(f"mat1 and mat2 must have rank 2, not {a.rank} and {b.rank}")
    left = _scaled(low, a, low.tensor(scale1, "scale1"))
    turned = [low.tensor(scale2, "scale2")]
    if not _has_blocks(b, turned[0]) and turned[0].rank == 2:
        turned = [permute(low, turned[0], [1, 0])]
    right = permute(low, _scaled(low, permute(low, b, [1, 0]), turned[0]), [1, 0])
    return [_finish(low, matmul(low, left, right), alpha, bias, beta, datatype(dtype)), None, None]


def cutlass_nvfp4_grouped_mm(
    low: Lowering,
    mat1: OperandLike,
    mat2: OperandLike,
    scale1: OperandLike,
    scale2: OperandLike,
    alpha: OperandLike,
    problem_sizes: OperandLike,
    expert_offsets: OperandLike,
    sf_offsets: OperandLike,
    dtype: DataType | torch.dtype = DataType.BFloat16,
) -> Node:
    """Multiply groups of rows in nvfp4 by one matrix each; offsets are the first rows of groups."""
    a, b, starts = low.tensor(mat1), low.tensor(mat2), low.tensor(expert_offsets)
    if a.rank != 2 or b.rank != 3 or {a.dtype, b.dtype} != {DataType.Float4_e2m1fn}:
        raise low.error("mat1 and mat2 must be Float4_e2m1fn of rank 2 and 3")
    op = partial(elementwise_node, low)
    left = fp4_to_float(low, a)
    blocks = _blocks(low, left, NVFP4)
    rows, _ = grouped_rows(low, blocks, starts, sf_offsets)
    columns = iota_along(low, blocks, 1)
    left = _times(low, left, unswizzle(low, low.tensor(scale1), rows, columns), NVFP4)
    right, tiles = fp4_to_float(low, permute(low, b, [0, 2, 1])), low.tensor(scale2)
    if tiles.rank != 3:
        raise low.error(f"scale2 must have rank 3, not {tiles.rank}")
    blocks = _blocks(low, right, NVFP4)
    first = op("mul", iota_along(low, blocks, 0), Number(tiles.shape[1], DataType.Int))
    rows, columns = op("add", first, iota_along(low, blocks, 1)), iota_along(low, blocks, 2)
    sizes = (tiles.shape[0] * tiles.shape[1], tiles.shape[2])
    flat = low.reshaped(tiles, sizes)
    right = _times(low, right, unswizzle(low, flat, rows, columns), NVFP4)
    later = low.builder.slice(starts.value, 0, 1, starts.shape[0] - 1)
    count = low.builder.full((1,), Scalar(a.shape[0]), starts.dtype.ir)
    ends = cat(low, [Node(later, starts.dtype), Node(count, starts.dtype)])
    out = _grouped_product(low, left, permute(low, right, [0, 2, 1]), ends)
    factor = index_select(low, alpha, group_of(low, a.shape[0], starts), 0)
    column = low.reshaped(factor, (a.shape[0], 1))
    return low.cast(op("mul", out, column), datatype(dtype))


# -- parts ----------------------------------------------------------------------------------------


def _grouped_product(low: Lowering, a: Node, b: Node, ends: Node) -> Node:
    """Append PyTorch's grouped product, on operands padded to sizes that it takes."""
    if (a.rank, b.rank) not in ((2, 2), (2, 3), (3, 2)):
        raise low.error(
            f"mat1 and mat2 have ranks {a.rank} and {b.rank}, not 2 and 2, 2 and 3, or 3 and 2"
        )
    if a.dtype not in (DataType.Float, DataType.Half, DataType.BFloat16):
        raise low.error(f"it does not take {a.dtype.value} operands")
    if ends.rank != 1 or not ends.dtype.is_int:
        raise low.error("the offsets must be integers of rank 1")
    groups = ends.shape[0]
    low.require_equal(a.shape[-1], b.shape[-2], "the sizes of the summed dimension")
    for t in (a, b):
        if t.rank == 3:
            low.require_equal(t.shape[0], groups, "the number of groups")
    batch = (groups,) if a.rank == b.rank else ()
    operands = [_aligned(low, t) for t in (a, b)]
    last, wide = b.shape[-1], operands[1].shape[-1]
    args = (*(t.value for t in operands), low.value_of(ends, DataType.Int32))
    out = low.call("aten._grouped_mm.default", args, (*batch, a.shape[-2], wide), a.dtype)
    sliced = low.builder.slice(out.value, out.rank - 1, 0, last)
    return Node(sliced, a.dtype)


def _aligned(low: Lowering, x: Node) -> Node:
    """Return a dense matrix whose sizes are multiples of ALIGNMENT, padded with zeros."""
    pads = [(round_up(low, e, ALIGNMENT) - e) for e in x.shape[-2:]]
    front = (0,) * x.rank
    if any(not isinstance(p, int) for p in pads):
        low.specialize(x.shape[-2:])
    if any(pads):
        value = low.builder.pad(x.value, front, (*front[2:], *pads), typed_scalar(0.0, x.dtype.ir))
        return Node(value, x.dtype)
    base = view_chain(x.value, low.producers())[-1]
    return x if base.strides is None else low.copy(x)


def _has_blocks(x: Node, scale: Node) -> bool:
    """Whether the scales belong to blocks along the summed dimension."""
    return x.dtype is DataType.Float4_e2m1fn or scale.dtype is DataType.Float8_e8m0fnu


def _scaled(low: Lowering, x: Node, scale: Node) -> Node:
    """Return a matrix, whose last dimension is summed, times its scales, as Float."""
    is_fp4 = x.dtype is DataType.Float4_e2m1fn
    wide = fp4_to_float(low, x) if is_fp4 else low.cast(x, DataType.Float)
    if _has_blocks(x, scale):
        size = NVFP4 if is_fp4 else MXFP8
        blocks = _blocks(low, wide, size)
        rows, columns = (iota_along(low, blocks, d) for d in range(2))
        return _times(low, wide, unswizzle(low, scale, rows, columns), size)
    for d in range(scale.rank):
        if d or scale.rank == 1:
            low.require_equal(scale.shape[d], 1, "the scale at the summed dimension")
    return elementwise_node(low, "mul", wide, low.tensor(scale))


def _blocks(low: Lowering, x: Node, size: int) -> tuple[Dim, ...]:
    """Return the shape of a tensor with an element for each block of the last dimension."""
    return (*x.shape[:-1], quotient(low, x.shape[-1], size, "the summed dimension"))


def _times(low: Lowering, x: Node, scales: Node, size: int) -> Node:
    """Multiply each block of the last dimension by its scale."""
    split = low.reshaped(x, (*scales.shape, size))
    column = low.reshaped(scales, (*scales.shape, 1))
    return low.reshaped(elementwise_node(low, "mul", split, column), x.shape)


def _finish(
    low: Lowering,
    out: Node,
    alpha: OperandLike | None,
    bias: OperandLike | None,
    beta: OperandLike | None,
    dtype: DataType,
) -> Node:
    """Return alpha * out + beta * bias in a type."""
    op = partial(elementwise_node, low)
    if bias is None and beta is not None:
        raise low.error("beta requires bias")
    out = out if alpha is None else op("mul", out, alpha)
    if bias is not None:
        out = op("add", out, bias if beta is None else op("mul", bias, beta))
    return low.cast(out, dtype)


def _require_plain_result(low: Lowering, block_scale_size: int, gamma: bool) -> None:
    if block_scale_size or gamma:
        raise low.error(
            "a quantized result (output_block_scale_size, output_gamma) is not supported"
        )


GROUPED: dict[str, Rule] = {
    "grouped_mm": grouped_mm,
    "scaled_mm": scaled_mm,
    "cutlass_nvfp4_grouped_mm": cutlass_nvfp4_grouped_mm,
}
