"""Parse the text form of a tile program: its kernel, then its launches."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.errors import ParseError
from tofuse.ir.kernel import Kernel, Reduce, Stmt
from tofuse.ir.line_reader import END, IndentedLines, LineReader, read_lines, split_block
from tofuse.ir.parse_kernel import KernelStatements, read_kernel
from tofuse.ir.parse_tiling import read_tile, read_tiling, read_tiling_choice
from tofuse.ir.tile import (
    LOOPED,
    Contraction,
    Partial,
    RowAlignment,
    Tile,
    TileLoop,
    TileNest,
    TileProgram,
    TilingChoice,
    Workspace,
)


def parse_tile(text: str) -> TileProgram:
    """Parse the `repr` of a tile program. Raises ParseError, which names the line."""
    kernel_lines, rest = split_block(read_lines(text))
    kernel = read_kernel(kernel_lines)
    if not rest:
        raise ParseError("a tile program is a kernel, then lines 'launch k: grid i0/8; warps 4'")
    KernelStatements(kernel, rest)  # sizes of workspaces are the kernel's
    workspaces: list[Workspace] = []
    choice: TilingChoice | None = None
    nests: list[TileNest] = []
    while rest:
        line, own = rest[0], kernel
        if line.skip("workspace"):
            workspaces.append(_workspace(line))
            rest = rest[1:]
            continue
        if line.skip("choice"):
            choice = read_tiling_choice(line)
            line.expect(END)
            rest = rest[1:]
            continue
        if line.peek() == "kernel":
            kernel_lines, rest = split_block(rest)
            own = read_kernel(kernel_lines)
        if not rest:
            raise line.error("the launch of this kernel expected after it")
        size = next((k for k, x in enumerate(rest[1:], 1) if not x.indent), len(rest))
        nests.append(_Parser(own, rest[:size]).nest())
        rest = rest[size:]
    by_launch = TilingChoice(tuple(nest.tiling for nest in nests))
    return TileProgram(kernel, tuple(nests), tuple(workspaces), choice or by_launch)


def _workspace(line: LineReader) -> Workspace:
    """Consume `w0: f32[64]`."""
    name = line.word()
    dtype = line.expect(":").dtype()
    elements = line.expect("[").dim()
    line.expect("]").expect(END)
    return Workspace(name, dtype, elements)


class _Parser:
    """Reads a launch of a kernel."""

    def __init__(self, kernel: Kernel, lines: Sequence[LineReader]) -> None:
        self.kernel = kernel
        self.statements = KernelStatements(kernel, lines)
        self.buffers = {b.name: b.name for b in kernel.buffers}
        self.header, self.lines = lines[0], IndentedLines(lines)
        self.lines.next(0)
        self.tiling = read_tiling(self.header.expect("launch").expect(kernel.name).expect(":"))
        self.header.expect(END)

    def nest(self) -> TileNest:
        bounds = self.bounds()
        line = self.lines.next(1, "rows")
        alignment = None if line is None else self.rows(line)
        contractions: list[Contraction] = []
        while (line := self.lines.next(1, "contraction")) is not None:
            contractions.append(self.contraction(line))
        loops = self.loops()
        partials: dict[str, Partial] = {}
        while (line := self.lines.next(1, "partial")) is not None:
            name = self.statements.reduction(line).name
            partials[name] = self.partial(line)
        if not self.lines.done:
            raise self.lines.error("unexpected line or indentation")
        return TileNest(
            self.kernel, self.tiling, loops, partials, bounds, tuple(contractions), alignment
        )

    def bounds(self) -> dict[str, int]:
        """Read `bounds s0=300 s1=4`."""
        found: dict[str, int] = {}
        line = self.lines.next(1, "bounds")
        while line is not None and not line.skip(END):
            name = line.lookup({s: s for s in self.kernel.symbols}, "is not a size of the kernel")
            found[name] = line.expect("=").number()
        return found

    def rows(self, line: LineReader) -> RowAlignment:
        """Read `of whole i1/256 from [(203)*i0] aligned to 4`."""
        alignment = RowAlignment(
            self.tile(line.expect("of")),
            start=self.statements.index(line.expect("from")),
            elements=line.expect("aligned").expect("to").number(),
        )
        line.expect(END)
        return alignment

    def tile(self, line: LineReader) -> Tile:
        """Consume a tile and return the tiling's."""
        start, tile = line.at, read_tile(line)
        if tile not in self.tiling.tiles:
            raise line.error("this is no tile of the launch", start)
        return self.tiling.tiles[self.tiling.tiles.index(tile)]

    def contraction(self, line: LineReader) -> Contraction:
        """Read `v5 of v4 = v1 * v2 in bf16`."""
        values = self.statements.definitions
        contraction = Contraction(
            total=self.statements.reduction(line),
            product=line.expect("of").lookup(values).name,
            left=line.expect("=").lookup(values).name,
            right=line.expect("*").lookup(values).name,
            dtype=line.expect("in").dtype(),
        )
        line.expect(END)
        return contraction

    def loops(self) -> tuple[TileLoop, ...]:
        """Read statements before loops over the tile, and the loops."""
        found: list[TileLoop] = []
        while True:
            prologue = self.block(1)
            line = self.lines.next(1, "for")
            if line is None:
                return (*found, TileLoop(prologue)) if prologue or not found else tuple(found)
            if self.tile(line).role not in LOOPED:
                raise line.error("a tile with the role loop or split expected")
            reductions: list[Reduce] = []
            if line.skip("reduces"):
                reductions = line.separated(self.statements.reduction)
            line.expect(":").expect(END)
            found.append(TileLoop(prologue, self.block(2), tuple(reductions)))

    def block(self, depth: int) -> tuple[Stmt, ...]:
        """Read the statements at a depth, up to a loop or a partial result."""
        found: list[Stmt] = []
        while (line := self.lines.peek(depth)) is not None:
            if line.peek() in ("for", "partial"):
                break
            self.lines.next(depth)
            found.append(self.statements.read(line))
        return tuple(found)

    def partial(self, line: LineReader) -> Partial:
        """Consume `in w0[i1] step 70 best w1` after the reduction's name."""
        partial = Partial(
            line.expect("in").lookup(self.buffers, "is not a buffer of the kernel"),
            index=self.statements.index(line),
            step=line.expect("step").dim(),
            best=line.lookup(self.buffers) if line.skip("best") else None,
        )
        line.expect(END)
        return partial
