"""Parse the text form of a plan."""

from __future__ import annotations

import re

from tofuse.errors import ParseError
from tofuse.ir.dims import Dim, parse_dim
from tofuse.ir.plan.data import (
    Allocate,
    Arena,
    Call,
    Launch,
    Parameter,
    Plan,
    Release,
    Step,
    View,
)
from tofuse.ir.types import DType

Strides = tuple[Dim, ...]


def parse_plan(text: str) -> Plan:
    """Parse the output of `show_plan`. Raises ParseError, which names the line."""
    rows = [(n, row.strip()) for n, row in enumerate(text.splitlines(), 1) if row.strip()]
    if len(rows) < 3 or rows[-1][1] != "}" or rows[-2][1].partition(" ")[0] != "return":
        raise ParseError("a plan is a header 'plan p(t_x{1}) {', then steps, a return line and '}'")
    number, header = rows[0]
    try:
        match = _match(_HEADER, header, "the header of a plan")
        parameters = tuple(map(_parameter, _split(match["parameters"])))
        symbols: list[tuple[str, str]] = []
        steps: list[Step] = []
        for n, row in rows[1:-2]:
            number = n
            size = _SIZE.fullmatch(row)
            if size is None:
                steps.append(_step(row))
            else:
                symbols.append((size["name"], size["text"]))
    except ValueError as e:
        raise ParseError(f"line {number}: {e}") from e
    results = tuple(_split(rows[-2][1].removeprefix("return")))
    return Plan(match["name"], parameters, tuple(symbols), tuple(steps), results)


def _step(row: str) -> Step:
    if match := _ARENA.fullmatch(row):
        return Arena(int(match["nbytes"]))
    if match := _ALLOCATE.fullmatch(row):
        shape, strides = _dims(match["shape"]), _dims(match["strides"])
        device = match["device"] or "cpu"
        return Allocate(match["name"], shape, strides, DType(match["dtype"]), device)
    if match := _LAUNCH.fullmatch(row):
        tensors, symbols = _split(match["tensors"]), _split(match["symbols"] or "")
        group = None if match["group"] is None else int(match["group"])
        return Launch(int(match["kernel"]), match["name"], tuple(tensors), tuple(symbols), group)
    if match := _VIEW.fullmatch(row):
        shape, strides = _dims(match["shape"]), _dims(match["strides"])
        return View(match["name"], match["source"], shape, strides, parse_dim(match["offset"]))
    if match := _RELEASE.fullmatch(row):
        return Release(tuple(_split(match["names"])))
    match = _match(_CALL, row, "a step of a plan")
    results = [] if match["results"] == "_" else [_tensor(r) for r in _split(match["results"])]
    names, strides_of = tuple(n for n, _ in results), tuple(s for _, s in results)
    picks = tuple(int(k) for k in (match["picks"] or "").split(",") if k)
    return Call(match["target"], match["args"], names, picks, strides_of)


def _parameter(text: str) -> Parameter:
    """Parse `t_x{4,1}`; the suffix `!` means mutated, `~` donated."""
    return Parameter(*_tensor(text.rstrip("!~")), text.endswith("!"), text.endswith("~"))


def _tensor(text: str) -> tuple[str, Strides | None]:
    """Parse `t_x{4,1}` into its name and strides."""
    match = _match(_TENSOR, text, "a name, such as t_x{4,1}")
    return match["name"], None if match["strides"] is None else _dims(match["strides"])


def _dims(text: str) -> Strides:
    return tuple(parse_dim(d) for d in text.split(",") if d)


def _split(text: str) -> list[str]:
    """Split at commas followed by a space; commas inside braces have none."""
    return [part.strip() for part in text.split(", ") if part.strip()]


def _match(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ParseError(f"{text!r} is not {what}")
    return match


_HEADER = re.compile(r"plan (?P<name>[^\s(]+)\((?P<parameters>[^)]*)\) \{")
_TENSOR = re.compile(r"(?P<name>\w+)(?:\{(?P<strides>[^}]*)\})?")
_SIZE = re.compile(r"size (?P<name>\w+) = (?P<text>.*)")
_ARENA = re.compile(r"arena (?P<nbytes>\d+)")
_LAYOUT = r"\[(?P<shape>[^\]]*)\]\{(?P<strides>[^}]*)\}"
_ALLOCATE = re.compile(rf"(?P<name>\w+) = allocate (?P<dtype>\w+){_LAYOUT}(?:@(?P<device>\S+))?")
_VIEW = re.compile(rf"(?P<name>\w+) = view (?P<source>\w+) {_LAYOUT} \+ (?P<offset>\S+)")
_LAUNCH = re.compile(
    r"launch (?P<kernel>\d+) (?P<name>[^\s(]+)\((?P<tensors>[^);]*)(?:; (?P<symbols>[^)]*))?\)"
    r"(?: in group (?P<group>\d+))?"
)
_RELEASE = re.compile(r"release (?P<names>.*)")
_CALL = re.compile(
    r"(?P<results>\S.*?) = call (?P<target>[\w.:]+)(?:\[(?P<picks>[\d,]*)\])?\((?P<args>.*)\)"
)
