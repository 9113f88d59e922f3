"""Parse the text form of a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tofuse.errors import ParseError
from tofuse.ir.dims import Dim, parse_dim, symbols_of
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel.data import (
    AffineExpr,
    Arg,
    Axis,
    Buffer,
    Compute,
    Definition,
    Gather,
    InRange,
    Iota,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Uniform,
    make_affine,
)
from tofuse.ir.types import DType


def parse_kernel(text: str) -> Kernel:
    """Parse the output of `show_kernel`. Blank lines and comment lines are skipped.

    Raises ParseError, which names the line.
    """
    rows = [(n, row.strip()) for n, row in enumerate(text.splitlines(), 1)]
    rows = [(n, row) for n, row in rows if row and not row.startswith("#")]
    if len(rows) < 2 or rows[-1][1] != "}":
        raise ParseError(
            "a kernel is a header 'kernel k(x: in f32) over i0:4 {', then statements and '}'"
        )
    number, header = rows[0]
    try:
        match = _match(_HEADER, header, "the header of a kernel")
        axes = tuple(_axis(word) for word in match["axes"].split() if word != "1")
        buffers = tuple(_buffer(b) for b in match["buffers"].split(", ") if b)
        symbols = tuple((match["symbols"] or "").split())
        body = _Body({a.name for a in axes}, set(symbols))
        for n, row in rows[1:-1]:
            number = n
            body.add(row)
    except ValueError as e:
        raise ParseError(f"line {number}: {e}") from e
    return Kernel(match["name"], axes, buffers, symbols, tuple(body.statements))


class _Body:
    """A parser of statements. `names` holds the values defined so far."""

    def __init__(self, axes: set[str], symbols: set[str]) -> None:
        self.axes, self.symbols = axes, symbols
        self.names: set[str] = set()
        self.statements: list[Stmt] = []

    def add(self, row: str) -> None:
        if row.startswith("store "):
            self.statements.append(self.store(row))
            return
        line = _match(_LET, row, "a statement")
        for pattern, make in _FORMS:
            match = pattern.fullmatch(line["right"])
            if match is not None:
                stmt = make(self, line["name"], DType(line["dtype"]), match)
                break
        else:
            raise ParseError(f"{line['right']!r} is not a statement")
        if stmt.dtype.value != line["dtype"]:
            raise ParseError(f"{line['name']} is {stmt.dtype.value}, not {line['dtype']}")
        self.names.add(stmt.name)
        self.statements.append(stmt)

    def store(self, row: str) -> Store:
        match = _match(_STORE, row, "a store")
        value, dtype = self.arg(match["value"]), DType(match["dtype"])
        return Store(match["buffer"], self.affine(match["index"]), value, dtype)

    def affine(self, text: str) -> AffineExpr:
        """Parse `(4)*i0 + i1 + 3`. A bare word is an axis or a size."""
        terms: list[tuple[str, Dim]] = []
        const: Dim = 0
        for part in text.split(" + "):
            match = _TERM.fullmatch(part)
            if match is not None:
                if match["axis"] not in self.axes:
                    raise ParseError(f"{match['axis']} is not an axis")
                terms.append((match["axis"], self.dim(match["by"])))
            elif part in self.axes:
                terms.append((part, 1))
            else:
                const = self.dim(part) + const
        return make_affine(terms, const)

    def dim(self, text: str) -> Dim:
        if not _DIM.fullmatch(text):
            raise ParseError(f"{text!r} is not a size")
        dim = parse_dim(text)
        for s in symbols_of(dim):
            if s not in self.symbols:
                raise ParseError(f"{s} is neither defined nor a size of the kernel")
        return dim

    def arg(self, text: str) -> Arg:
        if text in self.names:
            return text
        if text in ("True", "False"):
            return Scalar(text == "True")
        if _INT.fullmatch(text):
            return Scalar(int(text))
        if _FLOAT.fullmatch(text):
            return Scalar(float(text))
        return Scalar(self.dim(text))

    def value(self, text: str) -> str:
        if text not in self.names:
            raise ParseError(f"{text} is not defined")
        return text

    def guard(self, match: re.Match[str]) -> str | None:
        return None if match["guard"] is None else self.value(match["guard"])


def _load(body: _Body, name: str, dtype: DType, match: re.Match[str]) -> Load:
    return Load(name, match["buffer"], body.affine(match["index"]), dtype, body.guard(match))


def _gather(body: _Body, name: str, dtype: DType, match: re.Match[str]) -> Gather:
    return Gather(
        name,
        match["buffer"],
        body.affine(match["index"]),
        body.value(match["by"]),
        body.dim(match["stride"]),
        body.dim(match["extent"]),
        match["wrap"] is not None,
        dtype,
        body.guard(match),
    )


def _iota(body: _Body, name: str, dtype: DType, match: re.Match[str]) -> Iota:
    return Iota(name, body.affine(match["index"]), dtype)


def _in_range(body: _Body, name: str, dtype: DType, match: re.Match[str]) -> InRange:
    lo, hi = body.dim(match["lo"]), body.dim(match["hi"])
    return InRange(name, body.affine(match["index"]), lo, hi, body.guard(match))


def _uniform(body: _Body, name: str, dtype: DType, match: re.Match[str]) -> Uniform:
    row, col = body.affine(match["row"]), body.affine(match["col"])
    extent, stream = body.dim(match["extent"]), body.dim(match["stream"])
    return Uniform(name, match["seed"], row, col, extent, stream)


def _reduce(body: _Body, name: str, dtype: DType, match: re.Match[str]) -> Reduce:
    over = tuple(match["over"].split(","))
    position = None if match["position"] is None else body.affine(match["position"])
    return Reduce(name, match["op"], body.value(match["arg"]), over, dtype, position)


def _compute(body: _Body, name: str, dtype: DType, match: re.Match[str]) -> Compute:
    args: Sequence[Arg] = [body.arg(word) for word in match["args"].split()]
    return Compute(name, match["op"], tuple(args), dtype, DType(match["of"]))


def _axis(word: str) -> Axis:
    name, colon, extent = word.partition(":")
    if not colon or not _DIM.fullmatch(extent):
        raise ParseError(f"{word!r} is not an axis, such as i0:4")
    return Axis(name, parse_dim(extent))


def _buffer(text: str) -> Buffer:
    match = _match(_BUFFER, text, "a buffer, such as x0: in f32")
    return Buffer(match["name"], DType(match["dtype"]), match["role"])


def _match(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ParseError(f"{text!r} is not {what}")
    return match


_HEADER = re.compile(
    r"kernel (?P<name>[^\s(]+)\((?P<buffers>[^)]*)\) over (?P<axes>.+?)"
    r"(?: sizes (?P<symbols>[^{]+?))? \{"
)
_BUFFER = re.compile(r"(?P<name>\w+): (?P<role>\w+) (?P<dtype>\w+)")
_LET = re.compile(r"(?P<name>\w+) = (?P<right>.*) : (?P<dtype>\w+)")
_STORE = re.compile(r"store (?P<buffer>\w+)\[(?P<index>[^\]]*)\] (?P<value>\S+) : (?P<dtype>\w+)")
_TERM = re.compile(r"\((?P<by>[^)]*)\)\*(?P<axis>\w+)")
_DIM = re.compile(r"(?:-?\d+|[A-Za-z_]\w*)(?:[*+](?:-?\d+|[A-Za-z_]\w*))*")
_INT = re.compile(r"-?\d+")
_FLOAT = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)")
_AT, _IF = r"\[(?P<index>[^\]]*)\]", r"(?: if (?P<guard>\w+))?"
_FORMS: tuple[tuple[re.Pattern[str], Callable[..., Definition]], ...] = (
    (re.compile(rf"load (?P<buffer>\w+){_AT}{_IF}"), _load),
    (
        re.compile(
            rf"gather (?P<wrap>wrap )?(?P<buffer>\w+){_AT} by (?P<by>\w+) \* (?P<stride>\S+)"
            rf" below (?P<extent>\S+){_IF}"
        ),
        _gather,
    ),
    (re.compile(rf"iota {_AT}"), _iota),
    (re.compile(rf"in_range {_AT} (?P<lo>\S+) (?P<hi>\S+){_IF}"), _in_range),
    (
        re.compile(
            r"uniform (?P<seed>\w+)\[(?P<row>[^\]]*)\]\[(?P<col>[^\]]*)\]"
            r" of (?P<extent>\S+) stream (?P<stream>\S+)"
        ),
        _uniform,
    ),
    (
        re.compile(
            r"reduce (?P<op>\w+)<(?P<over>[^>]+)> (?P<arg>\w+)(?: at \[(?P<position>[^\]]*)\])?"
        ),
        _reduce,
    ),
    (re.compile(r"(?P<op>\w+) (?P<args>.*) of (?P<of>\w+)"), _compute),
)
