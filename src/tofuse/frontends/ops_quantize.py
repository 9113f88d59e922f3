"""Block quantization: nvfp4 (16 elements to a scale) and mxfp8 (32), and the layouts of scales."""

from __future__ import annotations

from functools import partial

import torch

from tofuse.frontends import ops_pointwise
from tofuse.frontends.datatypes import DataType, datatype
from tofuse.frontends.elementwise_table import elementwise, elementwise_node
from tofuse.frontends.items import Item, Node, Number, OperandLike, Rule
from tofuse.frontends.lowering import Lowering
from tofuse.frontends.ops_index import index_select, scatter
from tofuse.frontends.ops_pointwise import where
from tofuse.frontends.ops_reduce import reduce
from tofuse.frontends.ops_shape import cat, iota_along
from tofuse.ir.dims import Dim, exact_div, product
from tofuse.ir.graph import Scalar
from tofuse.ir.types import DType

FLOAT_MAX = 3.4028234663852886e38
FP8_MAX, FP4_MAX = 448.0, 6.0
BLOCKS = {DataType.Float4_e2m1fn: 16, DataType.Float8_e4m3fn: 32}
# Numbers of fp4 are the sums of the first of these. A number rounds to the next one above the
# bound, and at the bound to the even one, so that every second bound belongs to the next.
FP4_STEPS = (0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 2.0)
FP4_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def nv_block_quantize(
    low: Lowering,
    input: OperandLike,
    global_scale: OperandLike | None = None,
    swizzle_block_scales: bool = False,
    block_size: int = 16,
    dtype: DataType | torch.dtype = DataType.Float4_e2m1fn,
) -> list[Node]:
    """Return the tensor in nvfp4 or mxfp8, and a scale for each block of the last dimension.

    Swizzled scales are padded to 128 rows and 4 columns.
    """
    x, target = low.tensor(input, "input"), datatype(dtype)
    _check(low, x, global_scale, swizzle_block_scales, block_size, target)
    blocks = _in_blocks(low, x, block_size)
    if target is DataType.Float8_e4m3fn:
        return _to_mxfp8(low, blocks, x.shape)
    quantized, scales = _to_nvfp4(low, blocks, x.shape, global_scale)
    if swizzle_block_scales:
        flat = low.reshaped(scales, (product(x.shape[:-1]), scales.shape[-1]))
        scales = swizzle(
            low, flat, iota_along(low, flat.shape, 0), round_up(low, flat.shape[0], 128)
        )
    return [quantized, scales]


def nv_grouped_block_quantize(
    low: Lowering,
    input: OperandLike,
    input_offsets: OperandLike,
    output_offsets: OperandLike,
    global_scale: OperandLike | None = None,
    block_size: int = 16,
    dtype: DataType | torch.dtype = DataType.Float4_e2m1fn,
) -> list[Node]:
    """Quantize a matrix whose rows belong to groups; the scales are swizzled group by group."""
    quantized, scales = nv_block_quantize(low, input, global_scale, False, block_size, dtype)
    return [quantized, swizzle_groups(low, scales, input_offsets, output_offsets)]


def swizzle_groups(
    low: Lowering, input: OperandLike, input_offsets: OperandLike, output_offsets: OperandLike
) -> Node:
    """Swizzle scales group by group; offsets are the first rows of the groups, before and after.

    The result has room for the padding of each group to 128 rows.
    """
    scales = low.tensor(input, "input")
    if scales.rank != 2:
        raise low.error(f"the input must have rank 2, not {scales.rank}")
    rows, groups = grouped_rows(low, scales.shape, input_offsets, output_offsets)
    return swizzle(low, scales, rows, padded_rows(low, scales.shape[0], groups))


# -- layouts of scales ----------------------------------------------------------------------------


def padded_rows(low: Lowering, rows: Dim, groups: Dim) -> Dim:
    """Return the rows of all groups, each padded to 128: as many as there can be."""
    return floor_div(low, rows + 127 * groups, 128) * 128


def grouped_rows(
    low: Lowering, shape: tuple[Dim, ...], input_offsets: OperandLike, output_offsets: OperandLike
) -> tuple[Node, Dim]:
    """Return for each element of a matrix its row among padded groups, and the number of groups."""
    before, after = low.tensor(input_offsets), low.tensor(output_offsets)
    if before.rank != 1 or after.rank != 1:
        raise low.error("the offsets must have rank 1")
    low.require_equal(before.shape[0], after.shape[0], "the offsets")
    rows = iota_along(low, shape, 0)
    group = group_of(low, shape[0], before)
    shift = elementwise(
        low, "sub", index_select(low, after, group, 0), index_select(low, before, group, 0)
    )
    assert isinstance(shift, Node)
    column = low.reshaped(shift, (shape[0], 1))
    return elementwise_node(low, "add", rows, column), before.shape[0]


def group_of(low: Lowering, rows: Dim, starts: Node) -> Node:
    """Return the group of each row: how many groups but the first start at or before it."""
    numbers = iota_along(low, (rows, starts.shape[0]), 0)
    started = elementwise_node(low, "le", starts, numbers)
    count = elementwise_node(low, "sub", reduce("sum", low, started, [1]), 1)
    return elementwise_node(low, "maximum", count, 0)


def swizzled_positions(low: Lowering, rows: Node, columns: Node, width: Dim) -> Node:
    """Return where the scales of a matrix lie in tiles of 128 rows and 4 columns.

    A tile has 32 lines of 16: four rows at a distance of 32, four columns of each.
    """
    op = partial(elementwise_node, low)
    parts = (
        op("mul", op("div", rows, 128), Number(width * 128, DataType.Int)),
        op("mul", op("div", columns, 4), 512),
        op("mul", op("mod", rows, 32), 16),
        op("mul", op("mod", op("div", rows, 32), 4), 4),
    )
    total = op("mod", columns, 4)
    for part in parts:
        total = op("add", total, part)
    return low.reshaped(total, (product(total.shape),))


def swizzle(low: Lowering, scales: Node, rows: Node, padded: Dim) -> Node:
    """Return scales in tiles, zero where there is no scale; `rows` are those of the result."""
    width = round_up(low, scales.shape[1], 4)
    positions = swizzled_positions(low, rows, iota_along(low, scales.shape, 1), width)
    codes = _bytes_of(low, scales)
    flat = low.reshaped(codes, positions.shape)
    zeros = Node(low.builder.full((padded * width,), Scalar(0), DType.I32), DataType.Int32)
    tiles = low.reshaped(scatter(low, zeros, positions, flat, 0), (padded, width))
    return from_bytes(low, tiles, scales.dtype)


def unswizzle(low: Lowering, tiles: Node, rows: Node, columns: Node) -> Node:
    """Return the scales at these rows and columns as Float."""
    wide = low.cast(tiles, DataType.Float)
    positions = swizzled_positions(low, rows, columns, tiles.shape[-1])
    flat = low.reshaped(wide, (product(wide.shape),))
    return low.reshaped(index_select(low, flat, positions, 0), rows.shape)


def cast(low: Lowering, arg: OperandLike, dtype: DataType | torch.dtype) -> Item:
    """Convert to a type; fp4 has two numbers in a byte along the last dimension."""
    x, target = low.operand(arg), datatype(dtype)
    is_fp4, to_fp4 = x.dtype is DataType.Float4_e2m1fn, target.torch is torch.float4_e2m1fn_x2
    if is_fp4 == to_fp4:
        return ops_pointwise.cast(low, x, target)
    if is_fp4:
        return ops_pointwise.cast(low, fp4_to_float(low, low.tensor(x)), target)
    return float_to_fp4(low, low.cast(low.tensor(x), DataType.Float))


# -- numbers --------------------------------------------------------------------------------------


def _bytes_of(low: Lowering, x: Node) -> Node:
    """Return the codes of a tensor of a type of one byte."""
    codes = low.row_major(low.reinterpret(x.value, torch.uint8))
    return Node(low.builder.convert(codes, DType.I32), DataType.Int32)


def from_bytes(low: Lowering, codes: Node, dtype: DataType) -> Node:
    """Return a tensor of a type of one byte with these codes."""
    value = low.builder.convert(codes.value, DType.U8)
    return Node(low.reinterpret(value, dtype.torch), dtype)


def fp4_to_float(low: Lowering, x: Node) -> Node:
    """Return fp4 numbers as Float; a byte holds two neighbours of the last dimension."""
    op = partial(elementwise_node, low)
    codes = _bytes_of(low, x)
    pairs = (op("bitwise_and", codes, 15), op("bitwise_right_shift", codes, 4))
    parts = [low.reshaped(p, (*x.shape, 1)) for p in pairs]
    shape = (*x.shape[:-1], x.shape[-1] * 2)
    code = low.reshaped(cat(low, parts, -1), shape)
    magnitude, size = op("bitwise_and", code, 7), low.operand(0.0)
    for number, step in enumerate(FP4_STEPS, 1):
        above = where(low, op("ge", magnitude, number), step, 0.0)
        size = elementwise(low, "add", size, above)
    signed = where(low, op("ge", code, 8), elementwise(low, "neg", size), size)
    return low.cast(signed, DataType.Float)


def float_to_fp4(low: Lowering, x: Node) -> Node:
    """Round to fp4, ties to even; larger numbers become the largest, and nan does, too."""
    op = partial(elementwise_node, low)
    size, code = op("abs", x), low.operand(0)
    for number, bound in enumerate(FP4_BOUNDS):
        above = op("ge" if number % 2 else "gt", size, bound)
        code = elementwise(low, "add", code, low.cast(above, DataType.Int32))
    code = where(low, op("isnan", x), len(FP4_BOUNDS), code)
    code = elementwise(low, "add", code, where(low, op("signbit", x), 8, 0))
    pairs = (*x.shape[:-1], quotient(low, x.shape[-1], 2, "the last dimension"), 2)
    split = low.checked_reshape(low.value_of(code, DataType.Int32), pairs, DataType.Int32)
    halves = (low.builder.slice(split, x.rank, k, 1) for k in range(2))
    first, second = (Node(low.builder.reshape(h, pairs[:-1]), DataType.Int32) for h in halves)
    return from_bytes(low, op("add", first, op("mul", second, 16)), DataType.Float4_e2m1fn)


def to_fp8(low: Lowering, x: Node) -> Node:
    """Round to Float8_e4m3fn; larger numbers become the largest."""
    limited = elementwise(low, "minimum", elementwise(low, "maximum", x, -FP8_MAX), FP8_MAX)
    return low.cast(limited, DataType.Float8_e4m3fn)


def _to_nvfp4(
    low: Lowering, blocks: Node, shape: tuple[Dim, ...], global_scale: OperandLike | None
) -> list[Node]:
    """Return fp4 numbers and scales: the largest of a block becomes 6."""
    op = partial(elementwise_node, low)
    scale = op("truediv", reduce("max", low, op("abs", blocks), [-1], True), FP4_MAX)
    if global_scale is not None:
        scale = op("mul", scale, global_scale)
    scales = to_fp8(low, scale)
    decoded = low.cast(scales, DataType.Float)
    if global_scale is not None:
        decoded = op("mul", decoded, elementwise(low, "truediv", 1.0, global_scale))
    factor = op("minimum", op("reciprocal", decoded), FLOAT_MAX)
    scaled = low.reshaped(op("mul", blocks, factor), shape)
    return [float_to_fp4(low, scaled), low.reshaped(scales, blocks.shape[:-1])]


def _to_mxfp8(low: Lowering, blocks: Node, shape: tuple[Dim, ...]) -> list[Node]:
    """Return fp8 numbers and scales: powers of two, at least the largest of a block over 448."""
    op = partial(elementwise_node, low)
    largest = reduce("max", low, op("abs", blocks), [-1], True)
    ratio = low.copy(op("mul", largest, 1.0 / FP8_MAX))
    bits = Node(low.reinterpret(ratio.value, torch.int32), DataType.Int32)
    exponent, fraction = op("bitwise_right_shift", bits, 23), op("bitwise_and", bits, (1 << 23) - 1)
    smallest = where(low, op("eq", exponent, 0), 1 << 22, 0)  # 2 ** -127 is subnormal
    code = op("add", exponent, low.cast(op("gt", fraction, smallest), DataType.Int32))
    code = low.cast(op("minimum", code, 254), DataType.Int32)
    bits = low.cast(op("bitwise_left_shift", op("sub", 254, code), 23), DataType.Int32)
    inverse = Node(low.reinterpret(bits.value, torch.float32), DataType.Float)
    factor = where(low, op("eq", code, 0), 1.0, inverse)
    quantized = to_fp8(low, low.reshaped(op("mul", blocks, factor), shape))
    scales = from_bytes(low, code, DataType.Float8_e8m0fnu)
    return [quantized, low.reshaped(scales, blocks.shape[:-1])]


# -- helpers --------------------------------------------------------------------------------------


def round_up(low: Lowering, size: Dim, step: int) -> Dim:
    """Return the smallest multiple of `step` that is at least `size`."""
    return floor_div(low, size + (step - 1), step) * step


def floor_div(low: Lowering, size: Dim, divisor: int) -> Dim:
    return size // divisor if isinstance(size, int) else low.derived_size("//", size, divisor)


def quotient(low: Lowering, size: Dim, divisor: int, what: str) -> Dim:
    """Return a size divided by a number that must divide it; other sizes become static."""
    found = exact_div(size, divisor)
    if found is not None:
        return found
    if isinstance(size, int):
        raise low.error(f"{what} has {size} elements, no multiple of {divisor}")
    low.specialize([size])
    return low.derived_size("//", size, divisor)


def _in_blocks(low: Lowering, x: Node, size: int) -> Node:
    """Return a tensor as Float, with its last dimension split into blocks."""
    count = quotient(low, x.shape[-1], size, "the last dimension")
    return low.reshaped(low.cast(x, DataType.Float), (*x.shape[:-1], count, size))


def _check(
    low: Lowering,
    x: Node,
    global_scale: OperandLike | None,
    swizzle_scales: bool,
    block_size: int,
    target: DataType,
) -> None:
    if target not in BLOCKS:
        raise low.error(f"it makes Float4_e2m1fn and Float8_e4m3fn, not {target.value}")
    if block_size != BLOCKS[target]:
        raise low.error(f"block_size must be {BLOCKS[target]} for {target.value}, not {block_size}")
    if x.dtype not in (DataType.Float, DataType.Half, DataType.BFloat16) or not x.rank:
        raise low.error(
            "the input must be Float, Half or BFloat16 of rank 1 or more, "
            f"not {x.dtype.value} of rank {x.rank}"
        )
    if target is DataType.Float8_e4m3fn and (global_scale is not None or swizzle_scales):
        raise low.error("Float8_e4m3fn has no global scale, and its scales are not swizzled")
    if global_scale is None:
        return
    scale = low.tensor(global_scale, "global_scale")
    if scale.rank or scale.dtype is not DataType.Float:
        raise low.error(f"global_scale must be Float of rank 0, not {scale.dtype.value}")


QUANTIZE: dict[str, Rule] = {
    "cast": cast,
    "nv_block_quantize": nv_block_quantize,
    "nv_grouped_block_quantize": nv_grouped_block_quantize,
    "preprocess_grouped_matmul_input_sf": swizzle_groups,
}
