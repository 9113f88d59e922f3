"""Parse the text form of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import Dim, Symbol, parse_dim, symbol, symbols_of
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import (
    CARRIED,
    Axis,
    Buffer,
    Carried,
    Compute,
    Definition,
    Gather,
    InRange,
    Iota,
    Kernel,
    Load,
    Next,
    Previous,
    Reduce,
    Scan,
    Scatter,
    Stmt,
    Store,
    Uniform,
    show_stmt,
)
from tofuse.ir.line_reader import END, LineReader, read_block, read_lines
from tofuse.ir.statement import Arg
from tofuse.ir.types import DType


def parse_kernel(text: str) -> Kernel:
    """Parse the `repr` of a kernel. Raises ParseError, which names the line."""
    return read_kernel(read_lines(text))


def read_kernel(lines: Sequence[LineReader]) -> Kernel:
    """Return the kernel whose text the lines are."""
    header, body = read_block(
        lines,
        "a kernel is a header 'kernel k(x: in f32) over i0:4 {', then statements and '}'",
    )
    name = header.expect("kernel").word()
    buffers = header.expect("(").items(")", lambda: _buffer(header))
    axes: list[Axis] = []
    header.expect("over")
    if not header.skip("1"):
        while header.peek() not in (None, "sizes"):
            axes.append(Axis(header.word(), header.expect(":").dim()))
    symbols: dict[str, Symbol] = {}
    if header.skip("sizes"):
        while header.peek() is not None:
            size = _size(header)
            symbols[size] = size
    header.expect("{").expect(END)
    if symbols:  # the size hints follow the axes
        axes = [replace(a, extent=parse_dim(str(a.extent), symbols)) for a in axes]
    parser = _Parser({a.name for a in axes}, symbols)
    statements = tuple(map(parser.statement, body))
    return Kernel(name, tuple(axes), tuple(buffers), tuple(symbols), statements)


class KernelStatements:
    """The statements of a parsed kernel, found by their text in the text of its loops."""

    def __init__(self, kernel: Kernel, lines: Iterable[LineReader]) -> None:
        self.definitions = kernel.definitions
        self.reductions = {n: s for n, s in self.definitions.items() if isinstance(s, Reduce)}
        self.carried = {n: s for n, s in self.definitions.items() if isinstance(s, CARRIED)}
        self.by_text = {show_stmt(s): s for s in reversed(kernel.body)}
        symbols: dict[str, Symbol] = {s: s for s in kernel.symbols if isinstance(s, Symbol)}
        self.parser = _Parser(set(kernel.extents), symbols)
        self.parser.names.update({name: name for name in self.definitions})
        for line in lines:
            line.symbols = symbols

    def read(self, line: LineReader) -> Stmt:
        """Consume the text of a statement and return the kernel's statement of this text."""
        start = line.at
        stmt = self.by_text.get(show_stmt(self.parser.statement(line)))
        if stmt is None:
            raise line.error("the kernel has no such statement", start)
        return stmt

    def reduction(self, line: LineReader) -> Reduce:
        """Consume the name of a reduction."""
        return line.lookup(self.reductions, "is not a reduction of the kernel")

    def carried_statement(self, line: LineReader) -> Carried:
        """Consume the name of a scan or of a previous value."""
        return line.lookup(self.carried, "is not carried by the kernel's loops")

    def index(self, line: LineReader) -> AffineExpr:
        """Consume an index in brackets."""
        return self.parser.index(line)


def _size(line: LineReader) -> Symbol:
    """Consume `s0`, or `s0=300`, a size with its hint."""
    name = line.word()
    if not line.skip("="):
        return Symbol(name)
    (size,) = symbols_of(symbol(name, line.number()))
    return size


def _buffer(line: LineReader) -> Buffer:
    name, role = line.word(), line.expect(":").word()
    return Buffer(name, line.dtype(), role)


class _Parser:
    """`names` holds the values defined so far."""

    def __init__(self, axes: set[str], symbols: Mapping[str, Symbol]) -> None:
        self.axes, self.symbols = {a: a for a in axes}, symbols
        self.names: dict[str, str] = {}

    def statement(self, line: LineReader) -> Stmt:
        line.symbols = self.symbols
        if line.skip("store"):
            stmt: Stmt = Store(line.word(), self.index(line), self.arg(line), _dtype(line))
        elif line.skip("scatter"):
            stmt = self.scatter(line)
        else:
            name = line.word()
            stmt = self.definition(line.expect("="), name)
            if isinstance(stmt, (InRange, Uniform)):  # of one element type
                line.expect(":").expect(stmt.dtype.value)
            self.names[name] = name
        line.expect(END)
        return stmt

    def definition(self, line: LineReader, name: str) -> Definition:
        """Consume the right side of `name = ...`, up to its element type."""
        match op := line.word():
            case "load":
                return Load(
                    name=name,
                    buffer=line.word(),
                    index=self.index(line),
                    guard=self.guard(line),
                    dtype=_dtype(line),
                )
            case "gather":
                return Gather(
                    name=name,
                    wrap=line.skip("wrap"),
                    buffer=line.word(),
                    index=self.index(line),
                    dynamic_index=line.expect("by").lookup(self.names),
                    stride=line.expect("*").dim(),
                    extent=line.expect("below").dim(),
                    guard=self.guard(line),
                    dtype=_dtype(line),
                )
            case "iota":
                return Iota(name, self.index(line), _dtype(line))
            case "in_range":
                return InRange(name, self.index(line), line.dim(), line.dim(), self.guard(line))
            case "uniform":
                return Uniform(
                    name,
                    seed=line.word(),
                    row=self.index(line),
                    col=self.index(line),
                    extent=line.expect("of").dim(),
                    stream=line.expect("stream").dim(),
                    below=line.number() if line.skip("below") else None,
                )
            case "reduce":
                return self.reduce(line, name)
            case "scan":
                return self.scan(line, name)
            case "previous":
                return self.previous(line, name)
            case "next":
                previous = line.lookup(self.names)
                return Next(name, previous, line.lookup(self.names), _dtype(line))
            case _:
                args: list[Arg] = []
                while not line.skip("of"):
                    args.append(self.arg(line))
                return Compute(
                    name,
                    op,
                    tuple(args),
                    operand_dtype=line.dtype(),
                    rounds_to=line.dtype() if line.skip("to") else None,
                    dtype=_dtype(line),
                )

    def reduce(self, line: LineReader, name: str) -> Reduce:
        """Consume `sum<i0> v2 : f32`."""
        return Reduce(
            name,
            op=line.word(),
            over=self.over(line),
            arg=line.lookup(self.names),
            position=self.index(line) if line.skip("at") else None,
            dtype=_dtype(line),
        )

    def over(self, line: LineReader) -> tuple[str, ...]:
        """Consume `<i0,i1>`."""
        axes = line.expect("<").words()
        line.expect(">")
        return axes

    def scan(self, line: LineReader, name: str) -> Scan:
        """Consume `cumsum<i0> v2 : f64`, or `cumsum<i0> v2 down : f64`."""
        return Scan(
            name,
            op=line.word(),
            axis=line.expect("<").lookup(self.axes, "is not an axis"),
            arg=line.expect(">").lookup(self.names),
            reverse=line.skip("down"),
            dtype=_dtype(line),
        )

    def scatter(self, line: LineReader) -> Scatter:
        """Consume `sum<i0> y0[i1] by v0 * 64 below 2000 v1 : f32`."""
        return Scatter(
            op=line.word(),
            over=self.over(line),
            wrap=line.skip("wrap"),
            buffer=line.word(),
            index=self.index(line),
            dynamic_index=line.expect("by").lookup(self.names),
            stride=line.expect("*").dim(),
            extent=line.expect("below").dim(),
            value=line.lookup(self.names),
            dtype=_dtype(line),
        )

    def previous(self, line: LineReader, name: str) -> Previous:
        """Consume `<i0> v1 reads v2 v3 : f32`."""
        axis = line.expect("<").lookup(self.axes, "is not an axis")
        start = self.arg(line.expect(">"))
        line.expect("reads")
        reads: list[str] = []
        while line.peek() in self.names:
            reads.append(line.word())
        return Previous(name, start, tuple(reads), axis, _dtype(line))

    def index(self, line: LineReader) -> AffineExpr:
        """Consume `[(4)*i0 + i1 + 3]`. A bare word is an axis or a size."""
        line.expect("[")
        terms: list[tuple[str, Dim]] = []
        const: Dim = 0
        while True:
            if line.skip("("):
                by = line.dim()
                terms.append((line.expect(")").expect("*").lookup(self.axes, "is not an axis"), by))
            elif line.peek() in self.axes:
                terms.append((line.word(), 1))
            else:
                const = line.dim() + const
            if not line.skip("+"):
                line.expect("]")
                return make_affine(terms, const)

    def arg(self, line: LineReader) -> Arg:
        return line.word() if line.peek() in self.names else Scalar(line.scalar())

    def guard(self, line: LineReader) -> str | None:
        return line.lookup(self.names) if line.skip("if") else None


def _dtype(line: LineReader) -> DType:
    return line.expect(":").dtype()
