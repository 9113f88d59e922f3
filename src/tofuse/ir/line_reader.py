"""Read printed IR: a cursor in one line of text, with the tokens that all levels share."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tofuse.errors import ParseError
from tofuse.ir.dims import Dim, Symbol, parse_dim, symbols_of
from tofuse.ir.graph import Loc
from tofuse.ir.types import DType, TensorType

T = TypeVar("T")
END = "\n"  # the sign at the end of every line
SEPARATOR = "-----"  # a line between the texts of two programs


def read_lines(text: str) -> list[LineReader]:
    """Return a reader for each line that is neither blank nor a comment."""
    lines = [LineReader(n, row.rstrip()) for n, row in enumerate(text.splitlines(), 1)]
    return [line for line in lines if not (line.skip("#") or line.skip(END))]


def split_block(
    lines: Sequence[LineReader],
) -> tuple[Sequence[LineReader], Sequence[LineReader]]:
    """Return the lines up to the first closing '}', and the lines after it."""
    size = next((k for k, line in enumerate(lines, 1) if line.closes), len(lines))
    return lines[:size], lines[size:]


def read_block(
    lines: Sequence[LineReader], example: str
) -> tuple[LineReader, Sequence[LineReader]]:
    """Return the header and the lines between it and the closing '}'."""
    if len(lines) < 2 or not lines[-1].closes:
        raise ParseError(example)
    return lines[0], lines[1:-1]


class IndentedLines:
    """A cursor in lines that are nested by their indentation, two spaces for each level."""

    def __init__(self, lines: Sequence[LineReader]) -> None:
        self.lines, self.at = lines, 0

    @property
    def done(self) -> bool:
        return self.at == len(self.lines)

    def peek(self, depth: int) -> LineReader | None:
        """Return the next line if it is at `depth`."""
        line = self.lines[self.at] if self.at < len(self.lines) else None
        return line if line is not None and line.indent == 2 * depth else None

    def next(self, depth: int, keyword: str = "") -> LineReader | None:
        """Consume and return the next line if it is at `depth` and begins with `keyword`."""
        line = self.peek(depth)
        if line is None or (keyword and not line.skip(keyword)):
            return None
        self.at += 1
        return line

    def error(self, message: str) -> ParseError:
        """Return an error that names the next line, or the end of the last one."""
        if self.at < len(self.lines):
            return self.lines[self.at].error(message)
        last = self.lines[-1]
        return last.error(message, len(last.text))


class LineReader:
    """A cursor in one line of text. Spaces before a token are skipped.

    `symbols` are the sizes that the text may name, with their hints; None if it may name any.
    """

    def __init__(self, number: int, text: str) -> None:
        self.row, self.text, self.at = number, text + END, 0
        self.symbols: Mapping[str, Symbol] | None = None

    @property
    def indent(self) -> int:
        return len(self.text) - len(self.text.lstrip(" "))

    @property
    def closes(self) -> bool:
        """Whether the line is the brace that closes a block."""
        return self.text.strip() == "}"

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Consume and return the text that matches `pattern` here; None if it does not match."""
        self._skip_spaces()
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()

    def skip(self, sign: str) -> bool:
        """Consume a sign or a whole word if it comes next, and return whether it did."""
        self._skip_spaces()
        end = self.at + len(sign)
        found = self.text.startswith(sign, self.at)
        if found and sign[-1].isalnum():
            found = not (self.text[end].isalnum() or self.text[end] == "_")
        if found:
            self.at = end
        return found

    def expect(self, sign: str) -> LineReader:
        """Consume a sign or a word, and return this reader."""
        if not self.skip(sign):
            raise self.error("unexpected text" if sign == END else f"{sign!r} expected")
        return self

    def until(self, sign: str) -> str:
        """Consume and return the text before the last `sign`, and the sign."""
        self._skip_spaces()
        end = self.text.rfind(sign, self.at)
        if end < 0:
            raise self.error(f"{sign!r} expected")
        text, self.at = self.text[self.at : end], end + len(sign)
        return text

    def items(self, close: str, item: Callable[[], T]) -> list[T]:
        """Return items separated by commas, and consume the sign that closes the list."""
        found: list[T] = []
        while not self.skip(close):
            found.append(item())
            if not self.skip(","):
                self.expect(close)
                break
        return found

    def separated(self, item: Callable[[LineReader], T], sign: str = ",") -> list[T]:
        """Return one item, or several with a sign between them; `item` reads one."""
        found = [item(self)]
        while self.skip(sign):
            found.append(item(self))
        return found

    def peek(self) -> str | None:
        """Return the word that comes next, without consuming it."""
        start, word = self.at, self.match(_WORD)
        self.at = start
        return word

    def word(self, pattern: re.Pattern[str] | None = None, expected: str = "a name") -> str:
        """Consume a name or a number; all of it must match `pattern`."""
        word = self.peek()
        if word is None or (pattern is not None and not pattern.fullmatch(word)):
            raise self.error(f"{expected} expected")
        self.match(_WORD)
        return word

    def words(self) -> tuple[str, ...]:
        """Consume words separated by commas."""
        found: list[str] = []
        while self.peek() is not None:
            found.append(self.word())
            if not self.skip(","):
                break
        return tuple(found)

    def lookup(self, table: Mapping[str, T], problem: str = "is not defined") -> T:
        """Consume a name and return its entry in `table`."""
        start, word = self.at, self.word()
        if word not in table:
            raise self.error(f"{word} {problem}", start)
        return table[word]

    def constant(self) -> int | float | bool | str | DType | Dim | None:
        """Consume a keyword, a number, a size or a string."""
        quoted = self.match(_STRING)
        if quoted is not None:
            try:
                return str(ast.literal_eval(quoted))
            except (SyntaxError, ValueError) as error:
                raise self.error(f"{quoted} is not a string") from error
        word = self.peek() or ""
        if word in _KEYWORDS:
            return _KEYWORDS[self.word()]
        if _FLOAT.fullmatch(word) and not _INT.fullmatch(word):
            return self.real()
        return self.dim()

    def scalar(self) -> int | float | bool | Dim:
        """Consume True, False, a number or a size."""
        start, value = self.at, self.constant()
        if value is None or isinstance(value, (str, DType)):
            raise self.error(f"{value!r} is not a number", start)
        return value

    def dim(self) -> Dim:
        """Consume a size, such as `4` or `2*s0+1`."""
        start, word = self.at, self.word(_DIM, "a number or a size")
        if self.symbols is None:
            return parse_dim(word)
        dim = parse_dim(word, self.symbols)
        for s in (s for s in symbols_of(dim) if s not in self.symbols):
            raise self.error(f"{s} is neither defined nor a size of the kernel", start)
        return dim

    def dims(self, close: str) -> tuple[Dim, ...]:
        return tuple(self.items(close, self.dim))

    def strides(self) -> tuple[Dim, ...] | None:
        """Consume strides in braces; None if there are none."""
        return self.dims("}") if self.skip("{") else None

    def number(self) -> int:
        return int(self.word(_INT, "an integer"))

    def real(self) -> float:
        return float(self.word(_FLOAT, "a number"))

    def dtype(self) -> DType:
        return self.lookup(_DTYPES, "is not an element type")

    def device(self) -> str:
        """Consume `@` and a device; the CPU if there is no `@`."""
        return (self.match(_DEVICE) or "@cpu")[1:]

    def type(self) -> TensorType:
        """Consume `f32[4,s0]`, or `f32[4]@cuda:0`."""
        dtype = self.dtype()
        return TensorType(self.expect("[").dims("]"), dtype, self.device())

    def loc(self) -> Loc | None:
        """Consume the source location at the end of a line, if there is one, and the end."""
        self._skip_spaces()
        match = _LOC.fullmatch(self.text, self.at)
        if match is None:
            self.expect(END)
            return None
        return Loc(match[1], int(match[2]), fusion_hint=match[3] or "")

    def error(self, message: str, at: int | None = None) -> ParseError:
        """Return an error that names the line, and the column `at` or that of the next token."""
        self.at = self.at if at is None else at
        self._skip_spaces()
        rest = self.text[self.at :].rstrip()
        where = repr(rest) if rest else "the end of the line"
        return ParseError(f"line {self.row}, column {self.at + 1}: {message} at {where}")

    def _skip_spaces(self) -> None:
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1


_WORD = re.compile(r"[^\s,;(){}\[\]<>=:'\"]+")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_DEVICE = re.compile(r"@[\w.:]+")
_LOC = re.compile(r"# at (.*):(-?\d+)(?: \(([^()]*)\))?\n")
_INT = re.compile(r"-?\d+")
_FLOAT = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)")
_DIM = re.compile(r"(?:-?\d+|[A-Za-z_]\w*)(?:[*+](?:-?\d+|[A-Za-z_]\w*))*")
_DTYPES = {d.value: d for d in DType}
_KEYWORDS: dict[str, bool | DType | None] = {
    "True": True,
    "False": False,
    "None": None,
    **_DTYPES,
}
