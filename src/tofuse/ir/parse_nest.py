"""Parse the text form of a nest: its kernel, then its loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tofuse.errors import ParseError
from tofuse.ir.kernel import Kernel, Load
from tofuse.ir.line_reader import END, IndentedLines, LineReader, read_lines, split_block
from tofuse.ir.nest import Accumulator, Carry, For, Nest, Node, Phase, Reload, Scratch, StmtNode
from tofuse.ir.parse_kernel import KernelStatements, read_kernel
from tofuse.ir.parse_schedule import read_loop, read_schedule
from tofuse.ir.schedule import Loop

ENDS = ("end", "combine", "parallel", "serial")  # words after the nodes of a loop or a prologue


def parse_nest(text: str) -> Nest:
    """Parse the `repr` of a nest. Raises ParseError, which names the line."""
    return read_nest(read_lines(text))


def read_nest(lines: Sequence[LineReader]) -> Nest:
    """Read the lines of a nest."""
    kernel_lines, rest = split_block(lines)
    kernel = read_kernel(kernel_lines)
    if not rest:
        raise ParseError("a nest is a kernel, then a line 'nest k: order i0; ...' and loops")
    return _Parser(kernel, rest).nest()


class _Parser:
    """`scratch` holds the arrays by name, `spills` and `keys` those of values and of seeds."""

    def __init__(self, kernel: Kernel, lines: Sequence[LineReader]) -> None:
        self.kernel = kernel
        self.statements = KernelStatements(kernel, lines)
        self.seeds = {b.name: b.name for b in kernel.buffers}
        self.loads = {n: s for n, s in self.statements.definitions.items() if isinstance(s, Load)}
        header, self.lines = lines[0], IndentedLines(lines[1:])
        self.schedule = read_schedule(header.expect("nest").expect(kernel.name).expect(":"))
        self.block_bytes = header.expect(";").expect("workspace").dim()
        header.expect(END)
        self.scratch: dict[str, Scratch] = {}
        self.spills: dict[str, Scratch] = {}
        self.keys: dict[str, Scratch] = {}

    def nest(self) -> Nest:
        while (line := self.lines.next(1, "scratch")) is not None:
            self.array(line)
        phases: list[Phase] = []
        while (line := self.lines.next(1, "phase")) is not None:
            phases.append(self.phase(line))
        if not self.lines.done:
            raise self.lines.error("unexpected line or indentation")
        return Nest(
            self.kernel, self.schedule, tuple(phases), self.spills, self.keys, self.block_bytes
        )

    def array(self, line: LineReader) -> None:
        """Read `v3.keep: f32[64] at 0 index [i1] tiled i1 spills v3`."""
        array = Scratch(
            name=line.word(),
            dtype=line.expect(":").dtype(),
            elements=line.expect("[").dim(),
            offset=line.expect("]").expect("at").dim(),
            index=self.statements.index(line.expect("index")),
            tiled=line.words() if line.skip("tiled") else (),
        )
        self.scratch[array.name] = array
        while line.skip("spills"):
            self.spills[line.lookup(self.statements.definitions).name] = array
        while line.skip("keys"):
            self.keys[line.lookup(self.seeds, "is not a buffer")] = array
        line.expect(END)

    def phase(self, line: LineReader) -> Phase:
        """Read the prologue, the accumulators of partial results, the band and the body."""
        line.expect(":").expect(END)
        prologue, partials = self.nodes(2)
        band: list[Loop] = []
        head = self.lines.next(2, "serial")
        if head is None:
            head = self.lines.next(2, "parallel")
            if head is None:
                raise self.lines.error("'parallel' and loops, or 'serial' expected")
            while head.peek() is not None:
                band.append(self.loop_of(head))
        head.expect(":").expect(END)
        body = self.body(3)
        self.ends(2, "combine", partials)
        return Phase(tuple(band), prologue, body, partials)

    def body(self, depth: int) -> tuple[Node, ...]:
        nodes, begun = self.nodes(depth)
        if begun:
            raise self.lines.error(f"the loop that computes {begun[-1].reduce.name} expected")
        return nodes

    def nodes(self, depth: int) -> tuple[tuple[Node, ...], tuple[Accumulator, ...]]:
        """Return the nodes at a depth, and the accumulators that begin after the last node."""
        found: list[Node] = []
        while True:
            begun, carries = self.accumulators(depth), self.carries(depth)
            if (line := self.lines.next(depth, "for")) is not None:
                found.append(self.loop(line, depth, begun, carries))
                continue
            if carries:
                raise self.lines.error(f"the loop along {carries[-1].stmt.axis} expected")
            line = self.lines.peek(depth)
            if begun or line is None or line.peek() in ENDS:
                return tuple(found), begun
            self.lines.next(depth)
            found.append(self.node(line))

    def loop(
        self,
        line: LineReader,
        depth: int,
        accumulators: tuple[Accumulator, ...],
        carries: tuple[Carry, ...],
    ) -> For:
        loop = self.loop_of(line)
        ahead: list[Load] = []
        while line.skip("prefetch"):
            load = line.lookup(self.loads, "is not a load of the kernel")
            ahead.append(replace(load, index=self.statements.index(line)))
        line.expect(":").expect(END)
        body = self.body(depth + 1)
        self.ends(depth, "end", accumulators)
        return For(loop, body, accumulators, tuple(ahead), carries)

    def loop_of(self, line: LineReader) -> Loop:
        """Consume a loop and return the schedule's."""
        start, loop = line.at, read_loop(line)
        if loop not in self.schedule.loops:
            line.at = start
            raise line.error(f"{loop!r} is not a loop of the schedule")
        return self.schedule.loops[self.schedule.loops.index(loop)]

    def node(self, line: LineReader) -> Node:
        start = line.at
        if line.peek() in self.statements.definitions:
            name = line.word()
            if line.skip("=") and line.skip("reload"):
                array = self.array_of(line)
                line.expect(END)
                return Reload(name, array)
            line.at = start
        return StmtNode(self.statements.read(line))

    def accumulators(self, depth: int) -> tuple[Accumulator, ...]:
        """Read lines such as `begin v1 in v1.keep stages v1.0.keep`."""
        found: list[Accumulator] = []
        while (line := self.lines.next(depth, "begin")) is not None:
            reduction = self.statements.reduction(line)
            array = self.array_of(line) if line.skip("in") else None
            best = self.array_of(line) if line.skip("best") else None
            stages = line.items(END, lambda: self.array_of(line)) if line.skip("stages") else []
            if not stages:
                line.expect(END)
            found.append(Accumulator(reduction, array, best, tuple(stages)))
        return tuple(found)

    def carries(self, depth: int) -> tuple[Carry, ...]:
        """Read lines such as `carry v1 in v1.keep`."""
        found: list[Carry] = []
        while (line := self.lines.next(depth, "carry")) is not None:
            carried = self.statements.carried_statement(line)
            found.append(Carry(carried, self.array_of(line) if line.skip("in") else None))
            line.expect(END)
        return tuple(found)

    def array_of(self, line: LineReader) -> Scratch:
        return line.lookup(self.scratch, "is not a scratch array")

    def ends(self, depth: int, keyword: str, accumulators: tuple[Accumulator, ...]) -> None:
        """Read the lines that end reductions, such as `end v1`."""
        for a in accumulators:
            line = self.lines.next(depth, keyword)
            if line is None:
                raise self.lines.error(f"'{keyword} {a.reduce.name}' expected")
            line.expect(a.reduce.name).expect(END)
