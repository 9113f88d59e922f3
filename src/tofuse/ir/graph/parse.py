"""Parse the text form of a graph."""

from __future__ import annotations

import ast
import re

from tofuse.errors import ParseError
from tofuse.ir.dims import Dim, parse_dim
from tofuse.ir.graph.data import Attr, Graph, Loc, Op, Operand, Scalar, Value
from tofuse.ir.types import DType, TensorType, parse_type


def parse_graph(text: str) -> Graph:
    """Parse the output of `show_graph`. Blank lines and comment lines are skipped.

    Raises ParseError, which names the line.
    """
    return _Parser(text).graph()


class _Parser:
    """A line-by-line parser. `values` holds the values defined so far."""

    def __init__(self, text: str) -> None:
        rows = ((n, row.strip()) for n, row in enumerate(text.splitlines(), 1))
        self.rows = [(n, row) for n, row in rows if row and not row.startswith("#")]
        self.values: dict[str, Value] = {}

    def graph(self) -> Graph:
        if len(self.rows) < 3 or self.rows[-1][1] != "}":
            raise ParseError(
                "a graph is a header 'graph(x: f32[4]) {', then ops, a return line and '}'"
            )
        name, inputs = self.header(_Line(*self.rows[0]))
        ops = tuple(self.op(_Line(*row)) for row in self.rows[1:-2])
        return Graph(inputs, ops, self.outputs(_Line(*self.rows[-2])), name)

    def header(self, line: _Line) -> tuple[str, tuple[Value, ...]]:
        name = line.take(_ATOM)
        line.expect("(")
        inputs: list[Value] = []
        while not line.skip(")"):
            value_name = line.take(_ATOM)
            line.expect(":")
            inputs.append(self.define(line, value_name))
            line.skip(",")
        line.expect("{")
        line.end()
        return name, tuple(inputs)

    def op(self, line: _Line) -> Op:
        names = [line.take(_ATOM)]
        while line.skip(","):
            names.append(line.take(_ATOM))
        if line.skip("="):
            kind = line.take(_ATOM)
        else:  # an op that is run for its side effect and has no result
            kind = names.pop()
        operands, attrs = self.arguments(line)
        results: list[Value] = []
        for k, name in enumerate(names):
            line.expect("," if k else ":")
            results.append(self.define(line, name))
        return Op(kind, tuple(operands), tuple(results), tuple(attrs), line.loc())

    def arguments(self, line: _Line) -> tuple[list[Operand], list[tuple[str, Attr]]]:
        operands: list[Operand] = []
        attrs: list[tuple[str, Attr]] = []
        line.expect("(")
        while not line.skip(")"):
            start = line.at
            word = line.match(_ATOM)
            if word is not None and line.skip("="):
                attrs.append((word, self.attr(line)))
            elif word in self.values:
                operands.append(self.values[word])
            else:
                line.at = start
                operands.append(self.scalar(line))
            line.skip(",")
        return operands, attrs

    def scalar(self, line: _Line) -> Scalar:
        value = self.attr(line)
        if value is None or isinstance(value, (str, DType, tuple)):
            raise line.error(f"{value!r} is neither a defined value nor a number")
        return Scalar(value)

    def attr(self, line: _Line) -> Attr:
        if line.skip("("):
            items: list[Attr] = []
            while not line.skip(")"):
                items.append(self.attr(line))
                line.skip(",")
            return tuple(items)
        quoted = line.match(_STRING)
        if quoted is not None:
            return str(ast.literal_eval(quoted))
        return _atom(line, line.take(_ATOM))

    def define(self, line: _Line, name: str) -> Value:
        if name in self.values:
            raise line.error(f"{name} is defined twice")
        type_ = _type(line)
        strides: list[Dim] | None = None
        if line.skip("{"):
            strides = []
            while not line.skip("}"):
                strides.append(_dim(line, line.take(_ATOM)))
                line.skip(",")
        value = Value(type_, name, None if strides is None else tuple(strides))
        self.values[name] = value
        return value

    def outputs(self, line: _Line) -> tuple[Value | None, ...]:
        if line.match(_ATOM) != "return":
            raise line.error("the last line before '}' must be 'return' and the outputs")
        outputs: list[Value | None] = []
        while (name := line.match(_ATOM)) is not None:
            if name != "None" and name not in self.values:
                raise line.error(f"{name} is not defined")
            outputs.append(self.values.get(name))
            line.skip(",")
        line.end()
        return tuple(outputs)


class _Line:
    """A cursor in one line of text."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text, self.at = number, text, 0

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Consume and return the text that matches `pattern` here; None if it does not match."""
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()

    def take(self, pattern: re.Pattern[str]) -> str:
        match = self.match(pattern)
        if match is None:
            raise self.error(f"{_PATTERN_NAMES[pattern]} expected")
        return match

    def skip(self, sign: str) -> bool:
        self.match(_EMPTY)
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def expect(self, sign: str) -> None:
        if not self.skip(sign):
            raise self.error(f"{sign!r} expected")

    def loc(self) -> Loc | None:
        """Consume the source location at the end of an op's line, if there is one."""
        self.match(_EMPTY)
        match = _LOC.fullmatch(self.text, self.at)
        if match is not None:
            return Loc(match[1], int(match[2]), fusion_hint=match[3] or "")
        self.end()
        return None

    def end(self) -> None:
        self.match(_EMPTY)
        if self.at != len(self.text):
            raise self.error("unexpected text")

    def error(self, message: str) -> ParseError:
        return ParseError(f"line {self.number}: {message} at {self.text[self.at :]!r}")


def _type(line: _Line) -> TensorType:
    text = line.take(_TYPE)
    try:
        return parse_type(text)
    except ValueError as error:
        raise line.error(f"{text!r} is not a type: {error}") from error


def _atom(line: _Line, word: str) -> int | float | bool | DType | Dim | None:
    if word in _KEYWORDS:
        return _KEYWORDS[word]
    if _INT.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word):
        return float(word)
    return _dim(line, word)


def _dim(line: _Line, word: str) -> Dim:
    if not _DIM.fullmatch(word):
        raise line.error(f"{word!r} is neither a number nor a size")
    return parse_dim(word)


_EMPTY = re.compile("")
_ATOM = re.compile(r"[^\s,(){}\[\]=:'\"]+")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_TYPE = re.compile(r"\w+\[[^\]]*\](?:@[\w:.]+)?")
_LOC = re.compile(r"# at (.*):(-?\d+)(?: \(([^()]*)\))?")
_INT = re.compile(r"-?\d+")
_FLOAT = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)")
_DIM = re.compile(r"(?:-?\d+|[A-Za-z_]\w*)(?:[*+](?:-?\d+|[A-Za-z_]\w*))*")
_PATTERN_NAMES = {_ATOM: "a name or a number", _TYPE: "a type"}
_KEYWORDS: dict[str, bool | DType | None] = {
    "True": True,
    "False": False,
    "None": None,
    **{d.value: d for d in DType},
}
