"""Parse the text form of a schedule."""

from __future__ import annotations

from tofuse.ir.line_reader import END, LineReader
from tofuse.ir.schedule import Loop, Schedule


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


def read_loop(line: LineReader) -> Loop:
    """Consume an axis, `i0/64` for tiles of an axis, or `i0 jam 4`."""
    start = line.at
    axis, slash, strip = line.word(expected="an axis").partition("/")
    if bool(slash) != strip.isdecimal():
        raise line.error("a loop such as i0 or i0/64 expected", start)
    return Loop(axis, int(strip or 0), line.number() if line.skip("jam") else 1)
