"""Where a kernel's values stand while its text is written: registers, indices, masks, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tofuse.backends.llvm.elementwise import bf16_bits
from tofuse.backends.llvm.fp8_convert import narrowed, widened
from tofuse.backends.llvm.ir_text import (
    MEMORY,
    REGISTER,
    Function,
    literal,
    vector,
)
from tofuse.backends.llvm.random import splat
from tofuse.backends.llvm.unroll_rows import Rows
from tofuse.ir.dims import Dim, SymDim
from tofuse.ir.graph import Scalar
from tofuse.ir.interleave import Access
from tofuse.ir.kernel import Affine, Arg, Load, Stmt, Store
from tofuse.ir.nest import Nest, Scratch
from tofuse.ir.types import DType

LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class Register:
    """A value: one scalar, or `unroll` vectors."""

    names: tuple[str, ...]
    dtype: DType
    lanes: int


@dataclass(frozen=True)
class Tile:
    """A tile of `width` by `width` points, and the accesses in it that are contiguous along `rows`
    while vectors run along `columns`. Each of these goes through a small array; `plain` are other
    reads, contiguous along `columns`.
    """

    rows: str
    columns: str
    width: int
    accesses: tuple[Load | Store, ...]
    plain: tuple[Load, ...]


@dataclass(eq=False)
class Frame:
    """The state of one function: its text, its loop variables, its values.

    `vector` is the axis being run in vectors, None outside that loop; `masks` has one mask per
    vector in the loop's tail, and is None where all lanes are active.
    """

    f: Function
    nest: Nest
    pointers: dict[str, str]
    sizes: dict[str, str]
    block: str
    base: str
    status: str
    shared: frozenset[str] = frozenset()
    streams: frozenset[str] = frozenset()
    env: dict[str, Register] = field(default_factory=dict)
    index: dict[str, str] = field(default_factory=dict)
    tiles: dict[str, str] = field(default_factory=dict)
    vector: str | None = None
    masks: tuple[str, ...] | None = None
    splats: dict[str, str] = field(default_factory=dict)
    known: dict[str, bool] = field(default_factory=dict)  # guards that all lanes pass, or none
    tile: Tile | None = None  # the one inside which loops run now, all of it
    aligned: tuple[Store, ...] = ()  # begin whole vectors in the loop at hand
    rows: Rows | None = None  # those that a vector loop takes together
    turned: dict[Stmt, str] = field(default_factory=dict)  # arrays of accesses across its rows
    groups: Mapping[Access, tuple[Access, ...]] = field(default_factory=dict)  # in a vector loop

    @property
    def lanes(self) -> int:
        return self.nest.schedule.vector if self.vector is not None else 1

    @property
    def unroll(self) -> int:
        return self.nest.schedule.unroll if self.vector is not None else 1

    # -- scalars ---------------------------------------------------------------------------------

    def size(self, dim: Dim) -> str:
        """A size as an i64 operand."""
        if isinstance(dim, int):
            return str(dim)
        total = ""
        for monomial, c in dim.terms:
            term = str(c)
            for s in monomial:
                term = self.f.let(f"mul i64 {term}, {self.sizes[s]}")
            total = self.f.let(f"add i64 {total}, {term}") if total else term
        return total

    def affine(self, index: Affine, tiled: tuple[str, ...] = ()) -> str:
        """An affine index at the first lane, as an i64 operand."""
        total = self.size(index.const)
        for axis, c in index.terms:
            at = self.index[axis]
            if axis in tiled:
                at = self.f.let(f"sub i64 {at}, {self.tiles[axis]}")
            if c != 1:
                at = self.f.let(f"mul i64 {at}, {self.size(c)}")
            total = at if total == "0" else self.f.let(f"add i64 {total}, {at}")
        return total

    # -- values ----------------------------------------------------------------------------------

    def get(self, arg: Arg, dtype: DType) -> tuple[str, ...]:
        """An argument as `unroll` operands of `lanes` lanes."""
        lanes, unroll = self.lanes, self.unroll
        if isinstance(arg, Scalar):
            if isinstance(arg.value, SymDim):
                return (self._splat(self._from_size(arg.value, dtype), dtype),) * unroll
            return (literal(arg.value, dtype, lanes),) * unroll
        register = self.env[arg]
        if register.lanes == lanes and len(register.names) == unroll:
            return register.names
        return (self._splat(register.names[0], register.dtype),) * unroll

    def _splat(self, name: str, dtype: DType) -> str:
        if self.lanes == 1:
            return name
        if name not in self.splats:
            self.splats[name] = splat(self.f, name, REGISTER[dtype], self.lanes)
        return self.splats[name]

    def _from_size(self, dim: Dim, dtype: DType) -> str:
        name = self.size(dim)
        if dtype.is_float:
            return self.f.let(f"sitofp i64 {name} to {REGISTER[dtype]}")
        if REGISTER[dtype] == "i64":
            return name
        return self.f.let(f"trunc i64 {name} to {REGISTER[dtype]}")

    def put(self, name: str, parts: list[str], dtype: DType) -> None:
        self.env[name] = Register(tuple(parts), dtype, self.lanes)

    def lane_index(self, index: Affine, u: int) -> str:
        """An affine index in every lane of vector `u`, as i64 lanes."""
        start = self.affine(index)
        if self.vector is None:
            return start
        step = index.coefficient(self.vector)
        lanes = self.lanes
        kind = vector("i64", lanes)
        first = splat(self.f, start, "i64", lanes)
        ramp = ", ".join(f"i64 {k + u * lanes}" for k in range(lanes))
        ramp = f"<{ramp}>" if lanes > 1 else str(u)
        if step != 1:
            ramp = self.f.let(f"mul {kind} {ramp}, {splat(self.f, self.size(step), 'i64', lanes)}")
        return self.f.let(f"add {kind} {first}, {ramp}")

    def mask(self, u: int, guard: str | None = None) -> str | None:
        """The lanes of vector `u` that are active and pass the guard; None for all."""
        mask = None if self.masks is None else self.masks[u]
        if guard is None or self.known.get(guard):
            return mask
        passed = self.get(guard, DType.BOOL)[u]
        if mask is None:
            return passed
        return self.f.let(f"and {vector('i1', self.lanes)} {mask}, {passed}")

    # -- memory ----------------------------------------------------------------------------------

    def element(self, pointer: str, dtype: DType, at: str) -> str:
        return self.f.let(f"getelementptr {MEMORY[dtype]}, ptr {pointer}, i64 {at}")

    def load(self, pointer: str, dtype: DType, lanes: int, mask: str | None) -> str:
        """Read `lanes` elements next to each other, into a register."""
        return self.widen(self.raw(pointer, dtype, lanes, mask), dtype, lanes)

    def raw(self, pointer: str, dtype: DType, lanes: int, mask: str | None) -> str:
        """Read `lanes` elements next to each other, in their form in memory."""
        kind = vector(MEMORY[dtype], lanes)
        if mask is None:
            return self.f.let(f"load {kind}, ptr {pointer}, align {_alignment(dtype)}")
        if lanes == 1:
            wide, bit = f"<1 x {MEMORY[dtype]}>", self.f.let(f"bitcast i1 {mask} to <1 x i1>")
            one = self._masked_load(pointer, dtype, wide, "<1 x i1>", bit, 1)
            return self.f.let(f"extractelement {wide} {one}, i64 0")
        return self._masked_load(pointer, dtype, kind, vector("i1", lanes), mask, lanes)

    def _masked_load(
        self, pointer: str, dtype: DType, kind: str, bits: str, mask: str, lanes: int
    ) -> str:
        symbol = f"@llvm.masked.load.v{lanes}{_short(dtype)}.p0"
        self.f.declared[symbol] = f"declare {kind} {symbol}(ptr, {bits}, {kind})"
        pointer = f"ptr align {_alignment(dtype)} {pointer}"
        return self.f.let(f"call {kind} {symbol}({pointer}, {bits} {mask}, {kind} zeroinitializer)")

    def gather(self, pointer: str, dtype: DType, at: str, lanes: int, mask: str | None) -> str:
        """Read one element per lane, at i64 indices `at`."""
        kind, bits = vector(MEMORY[dtype], lanes), vector("i1", lanes)
        mask = mask or literal(True, DType.BOOL, lanes)
        pointers = self.f.let(
            f"getelementptr {MEMORY[dtype]}, ptr {pointer}, {vector('i64', lanes)} {at}"
        )
        symbol = f"@llvm.masked.gather.v{lanes}{_short(dtype)}.v{lanes}p0"
        ptrs = vector("ptr", lanes)
        self.f.declared[symbol] = f"declare {kind} {symbol}({ptrs}, {bits}, {kind})"
        raw = self.f.let(
            f"call {kind} {symbol}({ptrs} align {_alignment(dtype)} {pointers}, "
            f"{bits} {mask}, {kind} zeroinitializer)"
        )
        return self.widen(raw, dtype, lanes)

    def stream(self, pointer: str, dtype: DType, value: str, lanes: int) -> None:
        """Write `lanes` elements past the caches; the pointer is aligned to all of them."""
        self.put_stream(pointer, dtype, self.narrow(value, dtype, lanes), lanes)

    def put_stream(self, pointer: str, dtype: DType, raw: str, lanes: int) -> None:
        """The same for elements in their form in memory."""
        kind, align = vector(MEMORY[dtype], lanes), lanes * dtype.itemsize
        self.f.put(f"store {kind} {raw}, ptr {pointer}, align {align}, !nontemporal !0")

    def store(self, pointer: str, dtype: DType, value: str, lanes: int, mask: str | None) -> None:
        """Write `lanes` elements next to each other."""
        self.put_raw(pointer, dtype, self.narrow(value, dtype, lanes), lanes, mask)

    def put_raw(self, pointer: str, dtype: DType, raw: str, lanes: int, mask: str | None) -> None:
        """The same for elements in their form in memory."""
        kind, align = vector(MEMORY[dtype], lanes), _alignment(dtype)
        if mask is None or lanes == 1:
            self.f.put(f"store {kind} {raw}, ptr {pointer}, align {align}")
            return
        symbol, bits = f"@llvm.masked.store.v{lanes}{_short(dtype)}.p0", vector("i1", lanes)
        self.f.declared[symbol] = f"declare void {symbol}({kind}, ptr, {bits})"
        self.f.put(f"call void {symbol}({kind} {raw}, ptr align {align} {pointer}, {bits} {mask})")

    def scatter(
        self, pointer: str, dtype: DType, at: str, value: str, lanes: int, mask: str | None
    ) -> None:
        """Write one element per lane, at i64 indices `at`."""
        kind, bits = vector(MEMORY[dtype], lanes), vector("i1", lanes)
        mask, ptrs = mask or literal(True, DType.BOOL, lanes), vector("ptr", lanes)
        raw = self.narrow(value, dtype, lanes)
        pointers = self.f.let(
            f"getelementptr {MEMORY[dtype]}, ptr {pointer}, {vector('i64', lanes)} {at}"
        )
        symbol = f"@llvm.masked.scatter.v{lanes}{_short(dtype)}.v{lanes}p0"
        self.f.declared[symbol] = f"declare void {symbol}({kind}, {ptrs}, {bits})"
        self.f.put(
            f"call void {symbol}({kind} {raw}, {ptrs} align {_alignment(dtype)} {pointers}, "
            f"{bits} {mask})"
        )

    def widen(self, raw: str, dtype: DType, lanes: int) -> str:
        """From the form in memory to the form in a register."""
        kind = vector(MEMORY[dtype], lanes)
        if dtype is DType.BOOL:
            return self.f.let(f"icmp ne {kind} {raw}, {literal(0, DType.U8, lanes)}")
        if dtype is DType.F16:
            return self.f.let(f"fpext {kind} {raw} to {vector('float', lanes)}")
        if dtype is DType.BF16:
            ints = vector("i32", lanes)
            wide = self.f.let(f"zext {kind} {raw} to {ints}")
            moved = self.f.let(f"shl {ints} {wide}, {literal(16, DType.I32, lanes)}")
            return self.f.let(f"bitcast {ints} {moved} to {vector('float', lanes)}")
        return widened(self.f, raw, dtype, lanes) if dtype.is_quarter else raw

    def narrow(self, value: str, dtype: DType, lanes: int) -> str:
        """From the form in a register to the form in memory."""
        kind = vector(MEMORY[dtype], lanes)
        if dtype is DType.BOOL:
            return self.f.let(f"zext {vector('i1', lanes)} {value} to {kind}")
        if dtype is DType.F16:
            return self.f.let(f"fptrunc {vector('float', lanes)} {value} to {kind}")
        if dtype is DType.BF16:
            ints = vector("i32", lanes)
            bits = bf16_bits(self.f, value, lanes)
            upper = self.f.let(f"lshr {ints} {bits}, {literal(16, DType.I32, lanes)}")
            return self.f.let(f"trunc {ints} {upper} to {kind}")
        return narrowed(self.f, value, dtype, lanes) if dtype.is_quarter else value

    def scratch_pointer(self, scratch: Scratch) -> str:
        """The start of a scratch array: of this thread's block, or the combined one."""
        block = self.base if scratch.name in self.shared else self.block
        return self.f.let(f"getelementptr i8, ptr {block}, i64 {self.size(scratch.offset)}")

    def scratch_element(self, scratch: Scratch, u: int) -> str:
        at = self.affine(scratch.index, scratch.tiled)
        if u:
            at = self.f.let(f"add i64 {at}, {u * self.lanes}")
        return self.element(self.scratch_pointer(scratch), scratch.dtype, at)


def fetch(frame: Frame, buffer: str, dtype: DType, at: str, elements: int) -> None:
    """Bring elements next to each other into the cache; they may lie past the buffer's end."""
    for k in range(0, elements, LINE // dtype.itemsize):
        more = frame.f.let(f"add i64 {at}, {k}") if k else at
        slot = frame.element(frame.pointers[buffer], dtype, more)
        read, near, data = ("i32", "0"), ("i32", "2"), ("i32", "1")
        frame.f.call("@llvm.prefetch.p0", "void", ("ptr", slot), read, near, data)


def tail_masks(frame: Frame, left: str, known: int | None) -> tuple[str, ...]:
    """The lanes of each vector that are among the `left` elements, `known` where it is.

    LLVM 22 takes a masked store of truncated lanes, where it sees that only the first lane is
    active, for a store of the whole wide element: it must not see that.
    """
    f, schedule = frame.f, frame.nest.schedule
    lanes, masks = schedule.vector, []
    kind, zeros = vector("i32", lanes), f"<{lanes} x i32> zeroinitializer"
    few = f.let(f"trunc i64 {left} to i32")
    for u in range(schedule.unroll):
        seen = known is not None and known - u * lanes != 1
        count = few if seen else f.opaque("i32", few)
        ramp = ", ".join(f"i32 {u * lanes + k}" for k in range(lanes))
        one = f.let(f"insertelement {kind} poison, i32 {count}, i64 0")
        limit = f.let(f"shufflevector {kind} {one}, {kind} poison, {zeros}")
        masks.append(f.let(f"icmp slt {kind} <{ramp}>, {limit}"))
    return tuple(masks)


def register(dtype: DType) -> DType:
    """The type that a value of memory has in a register."""
    return DType.F32 if dtype.is_narrow else dtype


def _alignment(dtype: DType) -> int:
    return dtype.itemsize


def _short(dtype: DType) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(MEMORY[dtype], MEMORY[dtype])
