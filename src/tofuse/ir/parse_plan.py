"""Parse the text form of a plan."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tofuse.ir.dims import Dim
from tofuse.ir.line_reader import END, LineReader, read_block, read_lines
from tofuse.ir.parse_arguments import read_arguments, read_size
from tofuse.ir.plan import (
    Address,
    Allocate,
    Arena,
    Call,
    Launch,
    Parameter,
    Plan,
    Release,
    Result,
    ScratchRows,
    Step,
    Tiles,
    View,
)
from tofuse.ir.row_access import KernelRows, RowAccess
from tofuse.ir.size_expression import ArgumentSize, SizeSource

Strides = tuple[Dim, ...]


def parse_plan(text: str) -> Plan:
    """Parse the `repr` of a plan. Raises ParseError, which names the line."""
    header, body = read_block(
        read_lines(text),
        "a plan is a header 'plan p(t_x{1}) {', then steps, a return line and '}'",
    )
    name = header.expect("plan").word()
    parameters = header.expect("(").items(")", lambda: _parameter(header))
    header.expect("{").expect(END)
    symbols: list[tuple[str, SizeSource]] = []
    steps: list[Step] = []
    for line in body[:-1]:
        if line.skip("size"):
            symbols.append((line.word(), _source(line.expect("="), parameters)))
        else:
            steps.append(_step(line))
        line.expect(END)
    last = body[-1] if body else header
    results = last.expect("return").items(END, lambda: _result(last))
    return Plan(name, tuple(parameters), tuple(symbols), tuple(steps), tuple(results))


def _result(line: LineReader) -> Result:
    if line.skip("None"):
        return None
    is_tensor = (line.peek() or "").startswith("t_")
    return line.word() if is_tensor else line.dim()


def _step(line: LineReader) -> Step:
    if line.skip("arena"):
        return Arena(line.number())
    if line.skip("tiles"):
        return _tiles(line)
    if line.skip("launch"):
        return _launch(line)
    if line.skip("release"):
        return Release(line.words())
    results = line.separated(_tensor)
    line.expect("=")
    if line.skip("call"):
        return _call(line, results)
    name = results[0][0]
    if line.skip("allocate"):
        dtype = line.dtype()
        shape, strides = _layout(line)
        return Allocate(name, shape, strides, dtype, line.device())
    source = line.expect("view").word()
    shape, strides = _layout(line)
    return View(name, source, shape, strides, line.expect("+").dim())


def _launch(line: LineReader) -> Launch:
    kernel, name = line.number(), line.word()
    is_empty = line.expect("(").peek() is None
    tensors = [] if is_empty else line.separated(_address)
    sizes: Strides = ()
    if line.skip(";"):
        sizes = line.dims(")")
    else:
        line.expect(")")
    group = line.expect("group").number() if line.skip("in") else None
    return Launch(kernel, name, tuple(tensors), sizes, group)


def _tiles(line: LineReader) -> Tiles:
    count = line.number()
    chunks = line.expect("in").number()
    group = line.expect("of").expect("group").number()
    scratch = [] if line.expect("(").peek() is None else line.separated(_scratch_rows)
    rows = []
    while line.skip(";"):
        rows.append(_kernel_rows(line))
    line.expect(")")
    return Tiles(group, count, chunks, tuple(rows), tuple(scratch))


def _scratch_rows(line: LineReader) -> ScratchRows:
    return ScratchRows(line.word(), line.number(), line.skip("allocated"))


def _kernel_rows(line: LineReader) -> KernelRows:
    iterations = line.number()
    inner = line.expect("by").number()
    accesses: list[RowAccess] = []
    while (writes := line.skip("writes")) or line.skip("reads"):
        buffer, *numbers = (line.number() for _ in range(6))
        accesses.append(RowAccess(buffer, writes, *numbers))
    return KernelRows(iterations, inner, tuple(accesses))


def _address(line: LineReader) -> Address:
    tensor, _, offset = line.word(_ADDRESS, "a tensor").partition("+")
    return Address(tensor, int(offset) if offset else None)


def _call(line: LineReader, results: list[tuple[str, Strides | None]]) -> Call:
    target = line.match(_TARGET)
    if target is None:
        raise line.error("the name of an operator expected")
    picks = line.items("]", line.number) if line.skip("[") else []
    arguments = read_arguments(line.expect("("), ")")
    shapes = line.separated(_shape) if line.skip("returns") else []
    dtypes = line.separated(LineReader.dtype) if line.skip("as") else []
    if results == [("_", None)]:
        results = []
    names, strides = tuple(n for n, _ in results), tuple(s for _, s in results)
    return Call(target, arguments, names, tuple(picks), strides, tuple(shapes), tuple(dtypes))


def _source(line: LineReader, parameters: Sequence[Parameter]) -> SizeSource:
    """Consume `t_x.size(0)`, the name of a parameter, or a size expression."""
    names, start, word = [p.name for p in parameters], line.at, line.peek() or ""
    name, dot, kind = word.partition(".")
    if name in names:
        line.word()
        if kind in ("size", "stride"):
            dim = line.expect("(").number()
            line.expect(")")
            return ArgumentSize(kind, names.index(name), dim)
        if not dot and line.peek() is None:
            return ArgumentSize("argument", names.index(name))
    line.at = start
    return read_size(line)


def _parameter(line: LineReader) -> Parameter:
    """Consume `t_x{4,1}`; the suffix `!` means mutated, `~` donated."""
    name, strides = _tensor(line)
    mutated, donated = line.skip("!"), line.skip("~")
    return Parameter(name, strides, mutated, donated)


def _tensor(line: LineReader) -> tuple[str, Strides | None]:
    """Consume `t_x{4,1}` and return its name and strides."""
    return line.word(), line.strides()


def _layout(line: LineReader) -> tuple[Strides, Strides]:
    """Consume `[4,s0]{s0,1}` and return the shape and the strides."""
    return _shape(line), line.expect("{").dims("}")


def _shape(line: LineReader) -> Strides:
    return line.expect("[").dims("]")


_ADDRESS = re.compile(r"\w+(?:\+[0-9]+)?")
_TARGET = re.compile(r"[\w.:]+")
