"""Emission state of one LLVM function: loop indices, values in registers, masks, memory access."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tofuse.backends.cpu.llvm.ir_text import (
    MEMORY_TYPES,
    REGISTER_TYPES,
    FunctionBuilder,
    literal,
    ramp,
    short_name,
    size_operand,
    splat,
    vector_type,
)
from tofuse.backends.cpu.llvm.memory_types import to_memory_type, to_register_type
from tofuse.cost.machine import CACHE_LINE
from tofuse.ir.affine import AffineExpr
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Scalar
from tofuse.ir.interleave import Access
from tofuse.ir.kernel import Load, Stmt, Store
from tofuse.ir.nest import Nest, Scratch
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType


@dataclass(frozen=True)
class LaneTable:
    """What a value is for each code: lane k of `register` for the code k.

    Lanes of codes that do not occur hold anything. Each of `codes` is a vector of codes, as i32
    lanes whose upper bits do not count.
    """

    register: str
    codes: tuple[str, ...]


@dataclass(frozen=True)
class EmittedValue:
    """A kernel value as SSA operands: one scalar, or `unroll` vectors.

    `table` is not None if the value is a function of a code and of values that all lanes share.
    """

    operands: tuple[str, ...]
    dtype: DType
    lanes: int
    table: LaneTable | None = None


@dataclass(frozen=True)
class TransposedTile:
    """A tile of `width` by `width` points whose vectors run along the axis `columns`.

    `accesses` are contiguous along the axis `rows`; each goes through an array on the stack.
    `plain_loads` are contiguous along `columns`.
    """

    rows: str
    columns: str
    width: int
    accesses: tuple[Load | Store, ...]
    plain_loads: tuple[Load, ...]


@dataclass(eq=False)
class FunctionEmitter:
    """Emits the body of one function: values, indices and memory accesses as operands of the IR.

    `f` collects the text. `pointers` and `sizes` are operands by buffer and by size symbol.
    `workspace` points to the first thread's workspace, `thread_workspace` to this thread's.
    `combined_scratch` names the scratch arrays that are read after the threads' parts are combined.
    `status` is the stack slot of the flag for an index out of range. `values`, `indices` and
    `tile_starts` are what the enclosing loops define. `vector_axis` is the axis that the current
    loop runs in vectors. `masks` has one mask per vector in the tail of that loop, else it is None.
    """

    f: FunctionBuilder
    nest: Nest
    pointers: dict[str, str]
    sizes: dict[str, str]
    thread_workspace: str
    workspace: str
    status: str
    combined_scratch: frozenset[str] = frozenset()
    nontemporal_buffers: frozenset[str] = frozenset()
    native_lanes: int = 16  # floats in a register of the machine
    values: dict[str, EmittedValue] = field(default_factory=dict)
    indices: dict[str, str] = field(default_factory=dict)
    tile_starts: dict[str, str] = field(default_factory=dict)
    vector_axis: str | None = None
    masks: tuple[str, ...] | None = None
    splats: dict[str, str] = field(default_factory=dict)
    known_guards: dict[str, bool] = field(default_factory=dict)  # True: all lanes pass; False: none
    transposed_tile: TransposedTile | None = None  # set inside a full tile
    aligned_stores: tuple[Store, ...] = ()  # at vector boundaries, after peeling
    stack_arrays: dict[str, str] = field(default_factory=dict)  # of scratch arrays, by name
    tile_arrays: dict[Stmt, str] = field(default_factory=dict)  # stack arrays of the tile
    interleave_groups: Mapping[Access, tuple[Access, ...]] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        return self.nest.schedule.vector if self.vector_axis is not None else 1

    @property
    def unroll(self) -> int:
        return self.nest.schedule.unroll if self.vector_axis is not None else 1

    # -- indices ---------------------------------------------------------------------------------

    def size(self, dim: Dim) -> str:
        """Return a size as an i64 operand."""
        return size_operand(self.f, dim, self.sizes)

    def affine(self, index: AffineExpr, tiled: tuple[str, ...] = ()) -> str:
        """Return an affine index at the first lane as an i64 operand.

        Axes in `tiled` count from the start of their tile.
        """
        total = self.size(index.const)
        for axis, c in index.terms:
            term = self.indices[axis]
            if axis in tiled:
                term = self.f.let(f"sub i64 {term}, {self.tile_starts[axis]}")
            if c != 1:
                term = self.f.let(f"mul i64 {term}, {self.size(c)}")
            total = term if total == "0" else self.f.let(f"add i64 {total}, {term}")
        return total

    # -- values ----------------------------------------------------------------------------------

    def operands(self, arg: Arg, dtype: DType) -> tuple[str, ...]:
        """Return an argument as `unroll` operands of `lanes` lanes."""
        lanes, unroll = self.lanes, self.unroll
        if isinstance(arg, Scalar):
            if isinstance(arg.value, SymDim):
                return (self._splat(self._size_value(arg.value, dtype), dtype),) * unroll
            return (literal(arg.value, dtype, lanes),) * unroll
        value = self.values[arg]
        if value.lanes == lanes and len(value.operands) == unroll:
            return value.operands
        return (self._splat(value.operands[0], value.dtype),) * unroll

    def _splat(self, scalar: str, dtype: DType) -> str:
        if self.lanes == 1:
            return scalar
        if scalar not in self.splats:
            self.splats[scalar] = splat(self.f, scalar, REGISTER_TYPES[dtype], self.lanes)
        return self.splats[scalar]

    def _size_value(self, dim: Dim, dtype: DType) -> str:
        size = self.size(dim)
        if dtype.is_float:
            return self.f.let(f"sitofp i64 {size} to {REGISTER_TYPES[dtype]}")
        if REGISTER_TYPES[dtype] == "i64":
            return size
        return self.f.let(f"trunc i64 {size} to {REGISTER_TYPES[dtype]}")

    def define(
        self, name: str, operands: list[str], dtype: DType, table: LaneTable | None = None
    ) -> None:
        self.values[name] = EmittedValue(tuple(operands), dtype, self.lanes, table)

    def lane_indices(self, index: AffineExpr, u: int) -> str:
        """Return an affine index in every lane of vector `u`, as i64 lanes."""
        start = self.affine(index)
        if self.vector_axis is None:
            return start
        step = index.coefficient(self.vector_axis)
        lanes = self.lanes
        ty = vector_type("i64", lanes)
        first = splat(self.f, start, "i64", lanes)
        offsets = ramp("i64", u * lanes, lanes)
        if step != 1:
            steps = splat(self.f, self.size(step), "i64", lanes)
            offsets = self.f.let(f"mul {ty} {offsets}, {steps}")
        return self.f.let(f"add {ty} {first}, {offsets}")

    def mask(self, u: int, guard: str | None = None) -> str | None:
        """Return the mask of active lanes of vector `u` that pass the guard; None for all lanes."""
        mask = None if self.masks is None else self.masks[u]
        if guard is None or self.known_guards.get(guard):
            return mask
        passed = self.operands(guard, DType.BOOL)[u]
        return passed if mask is None else self.f.intersect(mask, passed, self.lanes)

    # -- memory ----------------------------------------------------------------------------------

    def element_pointer(self, pointer: str, dtype: DType, index: str) -> str:
        return self.f.let(f"getelementptr {MEMORY_TYPES[dtype]}, ptr {pointer}, i64 {index}")

    def mapped_index(self, index: str, guard: str | None, mask: str | None) -> str:
        """Return the index where a masked load starts: 0 if no lane passes the load's guard.

        There the index may be far outside the buffer, and a masked load of an unmapped page takes
        processors a hundred times as long, even if its mask is empty.
        """
        if guard is None or mask is None or self.known_guards.get(guard):
            return index
        passed = self.values[guard]
        some = passed.operands[0] if passed.lanes == 1 else self.f.any_lane(mask, self.lanes)
        return self.f.let(f"select i1 {some}, i64 {index}, i64 0")

    def load(self, pointer: str, dtype: DType, lanes: int, mask: str | None) -> str:
        """Read `lanes` contiguous elements into a register."""
        return to_register_type(self.f, self.load_raw(pointer, dtype, lanes, mask), dtype, lanes)

    def load_raw(self, pointer: str, dtype: DType, lanes: int, mask: str | None) -> str:
        """Read `lanes` contiguous elements without a conversion."""
        if mask is None:
            ty = vector_type(MEMORY_TYPES[dtype], lanes)
            return self.f.let(f"load {ty}, ptr {pointer}, align {dtype.itemsize}")
        ty, mask_ty = f"<{lanes} x {MEMORY_TYPES[dtype]}>", f"<{lanes} x i1>"
        if lanes == 1:
            mask = self.f.let(f"bitcast i1 {mask} to {mask_ty}")
        else:
            mask = self.f.load_mask(mask, lanes)
        symbol = f"@llvm.masked.load.v{lanes}{short_name(MEMORY_TYPES[dtype])}.p0"
        address, zeros = ("ptr", f"align {dtype.itemsize} {pointer}"), (ty, "zeroinitializer")
        raw = self.f.call(symbol, ty, address, (mask_ty, mask), zeros)
        return raw if lanes > 1 else self.f.let(f"extractelement {ty} {raw}, i64 0")

    def gather(self, pointer: str, dtype: DType, indices: str, lanes: int, mask: str | None) -> str:
        """Read one element per lane, at the i64 indices `indices`."""
        ty, mask_ty = vector_type(MEMORY_TYPES[dtype], lanes), vector_type("i1", lanes)
        mask = mask or literal(True, DType.BOOL, lanes)
        addresses = self._lane_addresses(pointer, dtype, indices, lanes)
        symbol = f"@llvm.masked.gather.v{lanes}{short_name(MEMORY_TYPES[dtype])}.v{lanes}p0"
        raw = self.f.call(symbol, ty, addresses, (mask_ty, mask), (ty, "zeroinitializer"))
        return to_register_type(self.f, raw, dtype, lanes)

    def store(
        self,
        pointer: str,
        dtype: DType,
        value: str,
        lanes: int,
        mask: str | None,
        *,
        nontemporal: bool = False,
    ) -> None:
        """Write `lanes` contiguous elements; see `store_raw`."""
        raw = to_memory_type(self.f, value, dtype, lanes)
        self.store_raw(pointer, dtype, raw, lanes, mask, nontemporal=nontemporal)

    def store_raw(
        self,
        pointer: str,
        dtype: DType,
        raw: str,
        lanes: int,
        mask: str | None,
        *,
        nontemporal: bool = False,
    ) -> None:
        """Write `lanes` contiguous elements without a conversion.

        Without a mask, a `nontemporal` store goes past the caches; its address is aligned to the
        whole vector.
        """
        ty, mask_ty = vector_type(MEMORY_TYPES[dtype], lanes), vector_type("i1", lanes)
        if mask is None and nontemporal:
            align = lanes * dtype.itemsize
            self.f.put(f"store {ty} {raw}, ptr {pointer}, align {align}, !nontemporal !0")
            return
        if mask is None or lanes == 1:
            self.f.put(f"store {ty} {raw}, ptr {pointer}, align {dtype.itemsize}")
            return
        symbol = f"@llvm.masked.store.v{lanes}{short_name(MEMORY_TYPES[dtype])}.p0"
        address = "ptr", f"align {dtype.itemsize} {pointer}"
        self.f.call(symbol, "void", (ty, raw), address, (mask_ty, mask))

    def scatter(
        self, pointer: str, dtype: DType, indices: str, value: str, lanes: int, mask: str | None
    ) -> None:
        """Write one element per lane, at the i64 indices `indices`."""
        ty, mask_ty = vector_type(MEMORY_TYPES[dtype], lanes), vector_type("i1", lanes)
        mask = mask or literal(True, DType.BOOL, lanes)
        raw = to_memory_type(self.f, value, dtype, lanes)
        addresses = self._lane_addresses(pointer, dtype, indices, lanes)
        symbol = f"@llvm.masked.scatter.v{lanes}{short_name(MEMORY_TYPES[dtype])}.v{lanes}p0"
        self.f.call(symbol, "void", (ty, raw), addresses, (mask_ty, mask))

    def _lane_addresses(
        self, pointer: str, dtype: DType, indices: str, lanes: int
    ) -> tuple[str, str]:
        ty, element = vector_type("i64", lanes), MEMORY_TYPES[dtype]
        pointers = self.f.let(f"getelementptr {element}, ptr {pointer}, {ty} {indices}")
        return vector_type("ptr", lanes), f"align {dtype.itemsize} {pointers}"

    def scratch_pointer(self, scratch: Scratch) -> str:
        """Return the start of a scratch array, in this thread's workspace or the combined one."""
        if scratch.name in self.stack_arrays:
            return self.stack_arrays[scratch.name]
        workspace = (
            self.workspace if scratch.name in self.combined_scratch else self.thread_workspace
        )
        return self.f.let(f"getelementptr i8, ptr {workspace}, i64 {self.size(scratch.offset)}")

    def scratch_element_pointer(self, scratch: Scratch, u: int) -> str:
        """Return the address of vector `u` in a scratch array at the current indices."""
        index = self.affine(scratch.index, scratch.tiled)
        if index.isdigit():  # so that LLVM sees which part of a stack array it is
            index = str(int(index) + u * self.lanes)
        elif u:
            index = self.f.let(f"add i64 {index}, {u * self.lanes}")
        return self.element_pointer(self.scratch_pointer(scratch), scratch.dtype, index)


def prefetch(
    emitter: FunctionEmitter, buffer: str, dtype: DType, index: str, elements: int
) -> None:
    """Prefetch contiguous elements, which may be past the buffer's end."""
    for k in range(0, elements, CACHE_LINE // dtype.itemsize):
        line_index = emitter.f.let(f"add i64 {index}, {k}") if k else index
        pointer = emitter.element_pointer(emitter.pointers[buffer], dtype, line_index)
        rw, locality, data = ("i32", "0"), ("i32", "2"), ("i32", "1")
        emitter.f.call("@llvm.prefetch.p0", "void", ("ptr", pointer), rw, locality, data)


def tail_masks(emitter: FunctionEmitter, left: str, known: int | None) -> tuple[str, ...]:
    """Return one mask per vector for the `left` elements of the tail; `known` is `left` if static.

    LLVM 22 turns a masked store of truncated lanes into a store of the whole wide element if it can
    prove that only the first lane is active. `hide_value` keeps it from knowing the count.
    """
    f, schedule = emitter.f, emitter.nest.schedule
    lanes, masks = schedule.vector, []
    few = f.let(f"trunc i64 {left} to i32")
    for u in range(schedule.unroll):
        several = known is not None and known - u * lanes != 1
        count = few if several else f.hide_value("i32", few)
        limit = splat(f, count, "i32", lanes)
        masks.append(f.let(f"icmp slt <{lanes} x i32> {ramp('i32', u * lanes, lanes)}, {limit}"))
    return tuple(masks)
