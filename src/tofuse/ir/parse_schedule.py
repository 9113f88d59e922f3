"""Parse the text form of a schedule."""

from __future__ import annotations

from tofuse.ir.line_reader import END, LineReader
from tofuse.ir.schedule import BlockedSchedule, ChainSchedule, Loop, Microkernel, Schedule


def parse_schedule(text: str) -> Schedule:
    """Parse the `repr` of a schedule. Raises ParseError."""
    line = LineReader(1, text)
    schedule = read_schedule(line)
    line.expect(END)
    return schedule


def read_schedule(line: LineReader) -> Schedule:
    """Consume `order i0 i1/64 i1; parallel 1; vector 16; unroll 4`."""
    loops: list[Loop] = []
    line.expect("order")
    while not line.skip(";"):
        loops.append(read_loop(line))
    return Schedule(
        tuple(loops),
        parallel=line.expect("parallel").number(),
        vector=line.expect(";").expect("vector").number(),
        unroll=line.expect(";").expect("unroll").number(),
    )


def read_blocked_schedule(line: LineReader) -> BlockedSchedule:
    """Consume the text of a blocked schedule.

    For example, `tiles i0/64 i1/512; microkernel f32 of 13 rows, 32 columns; blocks of 8
    micropanels, depth 512`.
    """
    rows, columns = read_loop(line.expect("tiles")), read_loop(line)
    name = _microkernel_name(line.expect(";").expect("microkernel"))
    micro_rows = line.expect("of").number()
    micro_columns = line.expect("rows").expect(",").number()
    left_micropanels = line.expect("columns").expect(";").expect("blocks").expect("of").number()
    depth = line.expect("micropanels").expect(",").expect("depth").number()
    tile = (rows.axis, rows.strip, columns.axis, columns.strip)
    size = (micro_rows, micro_columns)
    return BlockedSchedule(*tile, Microkernel(name), *size, depth, left_micropanels)


def read_chain_schedule(line: LineReader) -> ChainSchedule:
    """Consume `rows i2/52; microkernels f32 13x32, bf16_pairs 13x32`."""
    rows = read_loop(line.expect("rows"))
    line.expect(";").expect("microkernels")
    microkernels = [_read_microkernel(line)]
    while line.skip(","):
        microkernels.append(_read_microkernel(line))
    return ChainSchedule(rows.axis, rows.strip, tuple(microkernels))


def _read_microkernel(line: LineReader) -> tuple[Microkernel, int, int]:
    """Consume `f32 13x32`."""
    name = _microkernel_name(line)
    start = line.at
    rows, _, columns = line.word(expected="rows by columns").partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise line.error("rows by columns, such as 13x32, expected", start)
    return Microkernel(name), int(rows), int(columns)


def _microkernel_name(line: LineReader) -> str:
    start, name = line.at, line.word()
    if name not in {m.value for m in Microkernel}:
        raise line.error(f"there is no microkernel {name}", start)
    return name


def read_loop(line: LineReader) -> Loop:
    """Consume an axis, `i0/64` for tiles of an axis, or `i0 jam 4`."""
    start = line.at
    axis, slash, strip = line.word(expected="an axis").partition("/")
    if bool(slash) != strip.isdecimal():
        raise line.error("a loop such as i0 or i0/64 expected", start)
    return Loop(axis, int(strip or 0), line.number() if line.skip("jam") else 1)
