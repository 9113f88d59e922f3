"""LLVM IR of scans: running sums, products and extrema along a loop."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.carries import ActiveCarries
from tofuse.backends.cpu.llvm.elementwise import emit_elementwise
from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import (
    REGISTER_TYPES,
    FunctionBuilder,
    literal,
    splat,
    vector_type,
)
from tofuse.ir.kernel import Compute, Scan
from tofuse.ir.types import DType
from tofuse.ops.table import PREDICATES, scan_identity


def emit_scan(emitter: FunctionEmitter, carries: ActiveCarries, scan: Scan) -> None:
    """Define the values of a scan at the current iterations, and carry the last one."""
    values = emitter.operands(scan.arg, scan.dtype)
    array = carries.active[scan.name].array
    if array is not None:
        combined = []
        for u, x in enumerate(values):
            slot, mask = emitter.scratch_element_pointer(array, u), emitter.mask(u)
            before = emitter.load(slot, scan.dtype, emitter.lanes, mask)
            combined.append(_combine(emitter.f, scan, before, x, emitter.lanes))
            emitter.store(slot, scan.dtype, combined[-1], emitter.lanes, mask)
        emitter.define(scan.name, combined, scan.dtype)
        return
    slot, ty = carries.registers[scan.name], REGISTER_TYPES[scan.dtype]
    carried = emitter.f.let(f"load {ty}, ptr {slot}")
    results = [""] * len(values)
    order = range(len(values))
    for u in reversed(order) if scan.reverse else order:
        x = _identity_where_masked(emitter, scan, values[u], u)
        in_order = emitter.lanes > 1 and _may_overflow(emitter, scan)
        scan_vector = _scan_in_order if in_order else _scan_vector
        results[u], carried = scan_vector(emitter, scan, x, carried)
    emitter.f.put(f"store {ty} {carried}, ptr {slot}")
    emitter.define(scan.name, results, scan.dtype)


def _identity_where_masked(emitter: FunctionEmitter, scan: Scan, x: str, u: int) -> str:
    """Return vector `u` of the argument, with the identity in lanes that are not active."""
    mask, lanes = emitter.mask(u), emitter.lanes
    if mask is None:
        return x
    ty = vector_type(REGISTER_TYPES[scan.dtype], lanes)
    start = literal(scan_identity(scan.op, scan.dtype), scan.dtype, lanes)
    return emitter.f.let(f"select {vector_type('i1', lanes)} {mask}, {ty} {x}, {ty} {start}")


def _may_overflow(emitter: FunctionEmitter, scan: Scan) -> bool:
    """Whether the sum or product of a few elements may overflow though the whole one does not.

    That of eight numbers of float32 does not overflow in float64.
    """
    if not scan.dtype.is_float or scan.op not in ("cumsum", "cumprod"):
        return False
    arg = emitter.nest.kernel.definitions[scan.arg]
    if not isinstance(arg, Compute) or arg.op != "convert":
        return True
    return (arg.operand_dtype, scan.dtype) != (DType.F32, DType.F64)


def _scan_in_order(emitter: FunctionEmitter, scan: Scan, x: str, carried: str) -> tuple[str, str]:
    """Return the scan of a vector that follows `carried`, lane after lane, and what it carries."""
    f, lanes, elem = emitter.f, emitter.lanes, REGISTER_TYPES[scan.dtype]
    ty, result = vector_type(elem, lanes), "poison"
    for k in reversed(range(lanes)) if scan.reverse else range(lanes):
        element = f.let(f"extractelement {ty} {x}, i64 {k}")
        carried = _combine(f, scan, carried, element, 1)
        result = f.let(f"insertelement {ty} {result}, {elem} {carried}, i64 {k}")
    return result, carried


def _scan_vector(emitter: FunctionEmitter, scan: Scan, x: str, carried: str) -> tuple[str, str]:
    """Return the scan of a vector that follows `carried`, and what it carries.

    Each register is scanned by itself, so that one waits for the one before in one combination.
    """
    f, lanes, elem = emitter.f, emitter.lanes, REGISTER_TYPES[scan.dtype]
    width = min(lanes, max(1, 4 * emitter.native_lanes // scan.dtype.itemsize))
    ty, starts, parts = vector_type(elem, lanes), range(0, lanes, width), []
    for k in reversed(starts) if scan.reverse else starts:
        part = x if width == lanes else f.shuffle(ty, x, "poison", range(k, k + width))
        part = _scan_lanes(f, scan, part, width)
        parts.append(_combine(f, scan, splat(f, carried, elem, width), part, width))
        last = 0 if scan.reverse else width - 1
        total = part
        if width > 1:
            total = f.let(f"extractelement {vector_type(elem, width)} {part}, i64 {last}")
        carried = _combine(f, scan, carried, total, 1)
    parts = parts[::-1] if scan.reverse else parts
    while len(parts) > 1:
        both, narrow = range(2 * width), vector_type(elem, width)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts, width = [f.shuffle(narrow, x, y, both) for x, y in pairs], 2 * width
    return parts[0], carried


def _scan_lanes(f: FunctionBuilder, scan: Scan, x: str, lanes: int) -> str:
    """Return the scan of the lanes of one vector, in steps of doubling distance.

    The method is that of Hillis and Steele (1986).
    """
    ty = vector_type(REGISTER_TYPES[scan.dtype], lanes)
    start = literal(scan_identity(scan.op, scan.dtype), scan.dtype, lanes)
    distance = 1
    while distance < lanes:
        if scan.reverse:
            moved = f.shuffle(ty, x, start, range(distance, lanes + distance))
        else:
            before = [k - distance if k >= distance else lanes + k for k in range(lanes)]
            moved = f.shuffle(ty, x, start, before)
        x = _combine(f, scan, moved, x, lanes)
        distance *= 2
    return x


def _combine(f: FunctionBuilder, scan: Scan, before: str, x: str, lanes: int) -> str:
    """Return the combination of the earlier steps and the later ones."""
    if scan.op != "logcumsumexp":
        return emit_elementwise(f, COMBINES[scan.op], (before, x), scan.dtype, scan.dtype, lanes)

    def emit(op: str, *args: str) -> str:
        result = DType.BOOL if op in PREDICATES else scan.dtype
        return emit_elementwise(f, op, args, scan.dtype, result, lanes)

    high, low = emit("maximum", before, x), emit("minimum", before, x)
    total = emit("add", high, emit("log1p", emit("exp", emit("sub", low, high))))
    ty, test_ty = vector_type(REGISTER_TYPES[scan.dtype], lanes), vector_type("i1", lanes)
    is_infinite = emit("isinf", high)  # the difference of equal infinities is nan
    return f.let(f"select {test_ty} {is_infinite}, {ty} {high}, {ty} {total}")


COMBINES = {"cumsum": "add", "cumprod": "mul", "cummax": "maximum", "cummin": "minimum"}
