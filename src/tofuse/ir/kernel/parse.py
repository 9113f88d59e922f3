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
        found = _match(_HEADER, header, "the header of a kernel")
        axes = tuple(_axis(word) for word in found["axes"].split() if word != "1")
        buffers = tuple(_buffer(b) for b in found["buffers"].split(", ") if b)
        symbols = tuple((found["symbols"] or "").split())
        body = _Body({a.name for a in axes}, set(symbols))
        for n, row in rows[1:-1]:
            number = n
            body.add(row)
    except ValueError as e:
        raise ParseError(f"line {number}: {e}") from e
    return Kernel(found["name"], axes, buffers, symbols, tuple(body.statements))


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
            found = pattern.fullmatch(line["right"])
            if found is not None:
                stmt = make(self, line["name"], DType(line["dtype"]), found)
                break
        else:
            raise ParseError(f"{line['right']!r} is not a statement")
        if stmt.dtype.value != line["dtype"]:
            raise ParseError(f"{line['name']} is {stmt.dtype.value}, not {line['dtype']}")
        self.names.add(stmt.name)
        self.statements.append(stmt)

    def store(self, row: str) -> Store:
        found = _match(_STORE, row, "a store")
        value, dtype = self.arg(found["value"]), DType(found["dtype"])
        return Store(found["buffer"], self.affine(found["index"]), value, dtype)

    def affine(self, text: str) -> AffineExpr:
        """Parse `(4)*i0 + i1 + 3`. A bare word is an axis or a size."""
        terms: list[tuple[str, Dim]] = []
        const: Dim = 0
        for part in text.split(" + "):
            found = _TERM.fullmatch(part)
            if found is not None:
                if found["axis"] not in self.axes:
                    raise ParseError(f"{found['axis']} is not an axis")
                terms.append((found["axis"], self.dim(found["by"])))
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

    def guard(self, found: re.Match[str]) -> str | None:
        return None if found["guard"] is None else self.value(found["guard"])


def _load(body: _Body, name: str, dtype: DType, found: re.Match[str]) -> Load:
    return Load(name, found["buffer"], body.affine(found["index"]), dtype, body.guard(found))


def _gather(body: _Body, name: str, dtype: DType, found: re.Match[str]) -> Gather:
    return Gather(
        name,
        found["buffer"],
        body.affine(found["index"]),
        body.value(found["by"]),
        body.dim(found["stride"]),
        body.dim(found["extent"]),
        found["wrap"] is not None,
        dtype,
        body.guard(found),
    )


def _iota(body: _Body, name: str, dtype: DType, found: re.Match[str]) -> Iota:
    return Iota(name, body.affine(found["index"]), dtype)


def _in_range(body: _Body, name: str, dtype: DType, found: re.Match[str]) -> InRange:
    lo, hi = body.dim(found["lo"]), body.dim(found["hi"])
    return InRange(name, body.affine(found["index"]), lo, hi, body.guard(found))


def _uniform(body: _Body, name: str, dtype: DType, found: re.Match[str]) -> Uniform:
    row, col = body.affine(found["row"]), body.affine(found["col"])
    extent, stream = body.dim(found["extent"]), body.dim(found["stream"])
    return Uniform(name, found["seed"], row, col, extent, stream)


def _reduce(body: _Body, name: str, dtype: DType, found: re.Match[str]) -> Reduce:
    over = tuple(found["over"].split(","))
    position = None if found["position"] is None else body.affine(found["position"])
    return Reduce(name, found["op"], body.value(found["arg"]), over, dtype, position)


def _compute(body: _Body, name: str, dtype: DType, found: re.Match[str]) -> Compute:
    args: Sequence[Arg] = [body.arg(word) for word in found["args"].split()]
    return Compute(name, found["op"], tuple(args), dtype, DType(found["of"]))


def _axis(word: str) -> Axis:
    name, colon, extent = word.partition(":")
    if not colon or not _DIM.fullmatch(extent):
        raise ParseError(f"{word!r} is not an axis, such as i0:4")
    return Axis(name, parse_dim(extent))


def _buffer(text: str) -> Buffer:
    found = _match(_BUFFER, text, "a buffer, such as x0: in f32")
    return Buffer(found["name"], DType(found["dtype"]), found["role"])


def _match(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ParseError(f"{text!r} is not {what}")
    return found


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
