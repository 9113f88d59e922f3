"""TileProgram -> Python text of Triton kernels: one function for each launch.

A function's parameters are the addresses of its buffers (numbers, where a buffer is the host's),
its size symbols, the address of the error flag, and the number to set it to.
"""

from __future__ import annotations

from tofuse.backends.triton.elementwise import TRITON
from tofuse.backends.triton.prelude import prelude
from tofuse.backends.triton.reduce import combine_text, identity, reduced
from tofuse.backends.triton.space import Space
from tofuse.backends.triton.statements import Statements
from tofuse.ir.kernel import Reduce, Stmt, Store, Uniform
from tofuse.ir.tile import (
    Tile,
    TileLoop,
    TileNest,
    TileProgram,
)
from tofuse.ir.types import DType


def emit(program: TileProgram, *, exact: bool = False) -> str:
    """The text of a module; launch k of the program is its function `k<k>`.

    `exact` rounds quotients as eager does.
    """
    functions = "\n\n".join(_Emitter(nest, k, exact).run() for k, nest in enumerate(program.nests))
    return f"{prelude(functions)}\n\n{functions}"


def parameters(nest: TileNest) -> list[tuple[str, str]]:
    """Name and Triton type of each parameter of a launch; each takes 8 bytes."""
    found = []
    for b in nest.kernel.buffers:
        if b.role != "host":
            found.append((b.name, f"*{_POINTED[b.dtype]}"))
            continue
        for k in range(host_words(nest, b.name)):
            found.append((f"{b.name}_{k}", "fp64" if b.dtype.is_float else "i64"))
    found += [(s, "i64") for s in nest.kernel.symbols]
    return [*found, ("flag", "*i32"), ("number", "i64")]


def host_words(nest: TileNest, buffer: str) -> int:
    """How many numbers of a host buffer a launch takes: a seed has two."""
    seeds = {s.seed for s in nest.kernel.body if isinstance(s, Uniform)}
    return 2 if buffer in seeds else 1


class _Emitter:
    def __init__(self, nest: TileNest, number: int, exact: bool) -> None:
        self.nest, self.number = nest, number
        self.space = Space(nest)
        self.lines: list[str] = []
        self.statements = Statements(nest, self.space, self.line, exact)
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def run(self) -> str:
        names = ", ".join(name for name, _ in parameters(self.nest))
        self._tiles()
        for k, part in enumerate(self.nest.loops):
            self._pass(part, k)
        for r in (r for p in self.nest.loops for r in p.reductions):
            if r.name in self.nest.partials:
                self._leave(r)
        body = self.lines or ["    pass"]
        return "\n".join(["@triton.jit", f"def k{self.number}({names}):", *body, ""])

    # -- where a program works -------------------------------------------------------------------

    def _tiles(self) -> None:
        """The number of this program's block in each tile, and indices where nothing moves."""
        space, moving = self.space, self.nest.loop_tile
        wide = ".to(tl.int64)" if space.wide else ""
        self.line(f"pid = tl.program_id(0){wide}")
        parted = [t for t in self.nest.tiling.tiles if t.role in ("grid", "split")]
        for t in reversed(parted):
            count = space.blocks(t) if t.role == "grid" else str(self.nest.tiling.splits)
            if t is parted[0]:
                self.line(f"{space.program(t)} = pid")
            else:
                self.line(f"{space.program(t)} = pid % ({count})")
                self.line(f"pid = pid // ({count})")
        for t in self.nest.tiling.tiles:
            if t is not moving:
                self._index(t, f"{space.program(t)} * {t.block}" if t.role == "grid" else "0")

    def _index(self, tile: Tile, start: str) -> None:
        space = self.space
        wide = "tl.full([], 0, tl.int64) + " if space.wide else ""
        self.line(f"{space.start(tile)} = {wide}{start}")
        self.line(f"{space.index(tile)} = {space.arange(tile)}")
        if space.masked(tile):
            extent = space.dim(self.nest.extent(tile))
            self.line(f"{space.mask(tile)} = {space.index(tile)} < {extent}")

    # -- passes ----------------------------------------------------------------------------------

    def _pass(self, part: TileLoop, k: int) -> None:
        for s in part.prologue:
            self._do(s, "")
        moving = self.nest.loop_tile
        if moving is None or not part.body:
            return
        for r in part.reductions:
            self._begin(r)
        space = self.space
        blocks = space.blocks(moving)
        if moving.role == "loop":
            first, last = "0", blocks
        else:
            p, shares = space.program(moving), self.nest.tiling.splits
            self.line(f"share = ({blocks} + {shares - 1}) // {shares}")
            self.line(f"first = {p} * share")
            self.line(f"last = tl.minimum(first + share, {blocks})")
            first, last = "first", "last"
        self.line(f"for step in range({first}, {last}):")
        self.depth += 1
        self._index(moving, f"step * {moving.block}")
        for s in part.body:
            if s in part.reductions and isinstance(s, Reduce):
                self._accumulate(s)
            else:
                self._do(s, f"_{k}")
        self.depth -= 1
        for r in part.reductions:
            self._fold(r, r.name)

    def _do(self, stmt: Stmt, suffix: str) -> None:
        if isinstance(stmt, Reduce):
            self._reduce(stmt, suffix)
        elif isinstance(stmt, Store):
            self.statements.store(stmt)
        else:
            self.statements.define(stmt, suffix)

    # -- reductions ------------------------------------------------------------------------------

    def _operand(self, r: Reduce) -> tuple[str, str | None]:
        """The argument over its whole tile, with nothing outside, and positions."""
        space, dtype = self.space, self._type(r)
        shape = space.shape(self.statements.axes[r.arg] | frozenset(r.over))
        arg = self.statements.names[r.arg]
        if dtype is DType.BOOL:
            arg = f"{arg}.to(tl.int32)"
        masks = space.masks(r.over)
        if masks:
            arg = f"tl.where({' & '.join(masks)}, {arg}, {identity(r.op, dtype)})"
        arg = space.broadcast(arg, shape)
        if r.position is None:
            return arg, None
        place = f"({space.affine(r.position)}).to(tl.int64)"
        if masks:
            place = f"tl.where({' & '.join(masks)}, {place}, {NOWHERE})"
        return arg, space.broadcast(place, shape)

    def _type(self, r: Reduce) -> DType:
        """The type of what is compared or added."""
        return self.statements.kinds[r.arg] if r.position is not None else r.dtype

    def _register(self, r: Reduce) -> str:
        dtype = self._type(r)
        return "tl.int32" if dtype is DType.BOOL else TRITON[dtype]

    def _reduce(self, r: Reduce, suffix: str) -> None:
        arg, place = self._operand(r)
        name = r.name + suffix
        if place is None:
            self.line(f"{name} = {arg}")
        else:
            self.line(f"{name} = {place}")
            self.line(f"{name}_best = {arg}")
        self._fold(r, name)

    def _fold(self, r: Reduce, name: str) -> None:
        """Reduce a tile in registers to the result."""
        self.statements.bind(r, name)
        for t in self.space.tiles:
            if not set(t.axes).isdisjoint(r.over):
                self.line(reduced(r, name, self.space.number(t), self._type(r)))
        if r.position is None and r.dtype is DType.BOOL:
            self.line(f"{name} = {name} != 0")
        elif r.position is None:
            self.line(f"{name} = {name}.to({TRITON[r.dtype]})")

    def _begin(self, r: Reduce) -> None:
        shape, start = self.space.shape(self.statements.runs[r]), identity(r.op, self._type(r))
        first = f"tl.full({shape}, {start}, {self._register(r)})"
        if r.position is None:
            self.line(f"{r.name} = {first}")
        else:
            self.line(f"{r.name} = tl.full({shape}, {NOWHERE}, tl.int64)")
            self.line(f"{r.name}_best = {first}")

    def _accumulate(self, r: Reduce) -> None:
        arg, place = self._operand(r)
        if place is None:
            total = combine_text(r.op, r.name, arg, self._type(r))
            self.line(f"{r.name} = {total}.to({self._register(r)})")
        else:
            best = f"{r.name}_best"
            self.line(f"{best}, {r.name} = _{r.op}({best}, {r.name}, {arg}, {place})")

    def _leave(self, r: Reduce) -> None:
        """Store a program's part of a reduction."""
        moving, space = self.nest.loop_tile, self.space
        assert moving is not None
        p = self.nest.partials[r.name]
        index = f"{space.program(moving)} * {space.dim(p.step)} + {space.affine(p.index)}"
        axes = frozenset(p.index.axes)
        self.statements.write(p.buffer, index, r.name, axes, r.dtype)
        if p.best is not None:
            self.statements.write(p.best, index, f"{r.name}_best", axes, self._type(r))


NOWHERE = 2**62  # a place after all others

_POINTED = {
    DType.F64: "fp64",
    DType.F32: "fp32",
    DType.F16: "fp16",
    DType.BF16: "bf16",
    DType.F8E4M3: "u8",  # its bytes
    DType.F8E5M2: "u8",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.I16: "i16",
    DType.I8: "i8",
    DType.U8: "u8",
    DType.BOOL: "i8",  # a byte that is 0 or 1
}
