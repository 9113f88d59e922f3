"""Where everything of a program stands in its picture: ops inside regions, regions in layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.ir.dims import show_dim
from tofuse.ir.graph import Op
from tofuse.report.diagram_layout import (
    Gaps,
    Layout,
    Point,
    Size,
    lay_out,
)
from tofuse.report.program_view import Program, short_name

INSIDE = Gaps(14, 22, 640)
BETWEEN = Gaps(36, 48, 1800)
HEIGHT = 30  # of an op
HEAD, PAD = 30, 14  # of a region: its name, and the space around its ops
KIND, SHAPE = 8.2, 7.2  # widths of a letter
MOST_PORTS = 60  # inputs and outputs drawn as boxes; above, they would hide the program


@dataclass(frozen=True)
class Box:
    """A rectangle; x and y are its top left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Picture:
    """Boxes by region name, by op and by the name of an input or output; edges by their number.

    An edge is the points its curve runs through, or nothing if it is too long to draw.
    """

    regions: Mapping[str, Box]
    ops: Mapping[Op, Box]
    ports: Mapping[str, Box]
    edges: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def draw(program: Program) -> Picture:
    """Lay out the ops of each region, then the regions, inputs and outputs."""
    members: dict[str, list[Op]] = {}
    for op in program.ops:
        members.setdefault(program.region_of[op].name, []).append(op)
    names = [r.name for r in program.report.regions if r.name in members]
    inner = {name: _inside(program, members[name]) for name in names}
    sizes: dict[str, Size] = {}
    links, ports = _ports(program)
    sizes |= {p: ports[p] for p in ports if p.startswith("in ")}
    for name in names:
        width = max(inner[name].width, len(name) * KIND + 60) + 2 * PAD
        sizes[name] = (width, inner[name].height + HEAD + PAD)
    sizes |= {p: ports[p] for p in ports if p.startswith("out ")}
    for e in program.edges:
        links.append((program.region_of[e.producer].name, program.region_of[e.consumer].name))
    outer = lay_out(sizes, links, BETWEEN)
    regions = {n: Box(*outer.at[n], *sizes[n]) for n in names}
    ops = {}
    for name in names:
        for op, (x, y) in inner[name].at.items():
            indent = (sizes[name][0] - inner[name].width) / 2
            ops[op] = Box(regions[name].x + indent + x, regions[name].y + HEAD + y, *op_size(op))
    boxes = {p: Box(*outer.at[p], *sizes[p]) for p in ports}
    edges = tuple(_edge(program, k, inner, outer, ops, regions) for k in range(len(program.edges)))
    return Picture(regions, ops, boxes, edges, outer.width, outer.height)


def op_size(op: Op) -> Size:
    """Room for its name and its result's shape."""
    return 28 + KIND * len(short_name(op)) + SHAPE * len(op_shape(op)), HEIGHT


def op_shape(op: Op) -> str:
    """`64 × 256`; nothing for an op without results."""
    if not op.results:
        return ""
    return " × ".join(map(show_dim, op.results[0].shape)) or "scalar"


def _inside(program: Program, ops: list[Op]) -> Layout[Op]:
    here = set(ops)
    edges = [
        (e.producer, e.consumer) for e in program.edges if e.producer in here and e.consumer in here
    ]
    return lay_out({op: op_size(op) for op in ops}, edges, INSIDE)


def _ports(program: Program) -> tuple[list[tuple[str, str]], dict[str, Size]]:
    """Inputs that ops read and outputs that ops make, and the regions they hang on."""
    links: list[tuple[str, str]] = []
    ports: dict[str, Size] = {}
    for op in program.ops:
        for v in program.reads[op]:
            ports[f"in {v.name}"] = (30 + SHAPE * len(v.name), 24)
            links.append((f"in {v.name}", program.region_of[op].name))
    made = {r: op for op in program.ops for r in op.results}
    for out in program.graph.outputs:
        if out in made:
            ports[f"out {out.name}"] = (30 + SHAPE * len(out.name), 24)
            links.append((program.region_of[made[out]].name, f"out {out.name}"))
    return (links, ports) if len(ports) <= MOST_PORTS else ([], {})


def _edge(
    program: Program,
    number: int,
    inner: Mapping[str, Layout[Op]],
    outer: Layout[str],
    ops: Mapping[Op, Box],
    regions: Mapping[str, Box],
) -> tuple[Point, ...]:
    edge = program.edges[number]
    a, b = ops[edge.producer], ops[edge.consumer]
    here, there = program.region_of[edge.producer].name, program.region_of[edge.consumer].name
    if here == there:
        found = inner[here].bends.get((edge.producer, edge.consumer))
        if found is None:
            return ()
        box = regions[here]
        indent = box.x + (box.width - inner[here].width) / 2
        bends = tuple((indent + x, box.y + HEAD + y) for x, y in found)
    else:
        led = outer.bends.get((here, there))
        if led is None:
            return ()
        leaving = (a.x + a.width / 2, regions[here].y + regions[here].height)
        bends = (leaving, *led, (b.x + b.width / 2, regions[there].y))
    start, end = (a.x + a.width / 2, a.y + a.height), (b.x + b.width / 2, b.y)
    return (start, *bends, end)
