"""Parse the text form of a graph."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tofuse.ir.graph import Attr, Graph, Op, Operand, Scalar, Value
from tofuse.ir.line_reader import END, LineReader, read_block, read_lines
from tofuse.ir.parse_arguments import read_arguments


def parse_graph(text: str) -> Graph:
    """Parse the output of `show_graph`. Raises ParseError, which names the line."""
    return read_graph(read_lines(text))


def read_graph(lines: Sequence[LineReader]) -> Graph:
    header, body = read_block(
        lines, "a graph is a header 'graph(x: f32[4]) {', then ops, a return line and '}'"
    )
    return _Parser().graph(header, body)


class _Parser:
    """`values` holds the values defined so far."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}

    def graph(self, header: LineReader, body: Sequence[LineReader]) -> Graph:
        name = header.word()
        inputs = header.expect("(").items(")", lambda: self.input(header))
        header.expect("{").expect(END)
        ops = tuple(map(self.op, body[:-1]))
        line = body[-1] if body else header
        outputs = line.expect("return").items(
            END, lambda: None if line.skip("None") else line.lookup(self.values)
        )
        return Graph(tuple(inputs), ops, tuple(outputs), name)

    def input(self, line: LineReader) -> Value:
        name = line.word()
        line.expect(":")
        return self.define(line, name)

    def op(self, line: LineReader) -> Op:
        start, names = line.at, line.words()
        if not line.skip("="):  # an op that is run for its side effect and has no result
            line.at, names = start, ()
        kind = line.word()
        arguments = line.expect("(").items(")", lambda: self.argument(line))
        results: list[Value] = []
        for k, name in enumerate(names):
            line.expect("," if k else ":")
            results.append(self.define(line, name))
        operands = tuple(a for a in arguments if not isinstance(a, tuple))
        attrs = tuple(a for a in arguments if isinstance(a, tuple))
        return Op(kind, operands, tuple(results), attrs, line.loc())

    def argument(self, line: LineReader) -> Operand | tuple[str, Attr]:
        """Consume an operand, or an attribute as its name and value."""
        word = line.peek()
        if word in self.values:
            return line.lookup(self.values)
        if (name := line.match(_ATTR_NAME)) is not None:
            value = _attr(line)
            if name == "args=" and isinstance(value, str):
                value = read_arguments(LineReader(line.row, value), END)
            return name[:-1], value
        return Scalar(line.scalar())

    def define(self, line: LineReader, name: str) -> Value:
        if name in self.values:
            raise line.error(f"{name} is defined twice")
        value = Value(line.type(), name, line.strides())
        self.values[name] = value
        return value


def _attr(line: LineReader) -> Attr:
    if line.skip("("):
        return tuple(line.items(")", lambda: _attr(line)))
    return line.constant()


_ATTR_NAME = re.compile(r"\w+=")
