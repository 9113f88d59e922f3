"""Lay out a program as a diagram: ops inside regions, regions in layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.ir.dims import show_dim
from tofuse.ir.graph import Op
from tofuse.report.diagram_layout import (
    DiagramLayout,
    Gaps,
    Point,
    Size,
    layered_layout,
)
from tofuse.report.program_view import Edge, ProgramView, short_name

OP_GAPS = Gaps(14, 22, 640)
REGION_GAPS = Gaps(36, 48, 1800)
OP_HEIGHT = 30
REGION_TITLE_HEIGHT, REGION_PADDING = 30, 14
NAME_CHAR_WIDTH, SHAPE_CHAR_WIDTH = 8.2, 7.2
MAX_PORTS = 60  # with more inputs and outputs, their boxes would hide the program


@dataclass(frozen=True)
class Box:
    """A rectangle; x and y give its top left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Diagram:
    """The boxes of regions (by name), ops and ports, and the points of each edge (by number).

    Ports are the program's inputs and outputs, by `in <name>` and `out <name>`. An edge without
    points is too long to draw.
    """

    regions: Mapping[str, Box]
    ops: Mapping[Op, Box]
    ports: Mapping[str, Box]
    edges: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def draw_diagram(program: ProgramView) -> Diagram:
    """Lay out the ops of each region, then the regions, inputs and outputs."""
    members: dict[str, list[Op]] = {}
    for op in program.ops:
        members.setdefault(program.region_of[op].name, []).append(op)
    names = [r.name for r in program.report.regions if r.name in members]
    region_layouts = {name: _layout_region(program, members[name]) for name in names}
    sizes: dict[str, Size] = {}
    links, ports = _ports(program)
    sizes |= {p: ports[p] for p in ports if p.startswith("in ")}
    for name in names:
        width = (
            max(region_layouts[name].width, len(name) * NAME_CHAR_WIDTH + 60) + 2 * REGION_PADDING
        )
        sizes[name] = (width, region_layouts[name].height + REGION_TITLE_HEIGHT + REGION_PADDING)
    sizes |= {p: ports[p] for p in ports if p.startswith("out ")}
    for e in program.edges:
        links.append((program.region_of[e.producer].name, program.region_of[e.consumer].name))
    program_layout = layered_layout(sizes, links, REGION_GAPS)
    regions = {n: Box(*program_layout.positions[n], *sizes[n]) for n in names}
    ops = {}
    for name in names:
        for op, (x, y) in region_layouts[name].positions.items():
            indent = (sizes[name][0] - region_layouts[name].width) / 2
            ops[op] = Box(
                regions[name].x + indent + x,
                regions[name].y + REGION_TITLE_HEIGHT + y,
                *op_size(op),
            )
    boxes = {p: Box(*program_layout.positions[p], *sizes[p]) for p in ports}
    edges = tuple(
        _edge_points(program, edge, region_layouts, program_layout, ops, regions)
        for edge in program.edges
    )
    return Diagram(regions, ops, boxes, edges, program_layout.width, program_layout.height)


def op_size(op: Op) -> Size:
    """Return the size of an op's box, which shows its name and the shape of its result."""
    width = 28 + NAME_CHAR_WIDTH * len(short_name(op)) + SHAPE_CHAR_WIDTH * len(op_shape(op))
    return width, OP_HEIGHT


def op_shape(op: Op) -> str:
    """Return the first result's shape as text, such as `64 × 256`, or "" without results."""
    if not op.results:
        return ""
    return " × ".join(map(show_dim, op.results[0].shape)) or "scalar"


def _layout_region(program: ProgramView, ops: list[Op]) -> DiagramLayout[Op]:
    members = set(ops)
    edges = [
        (e.producer, e.consumer)
        for e in program.edges
        if e.producer in members and e.consumer in members
    ]
    return layered_layout({op: op_size(op) for op in ops}, edges, OP_GAPS)


def _ports(program: ProgramView) -> tuple[list[tuple[str, str]], dict[str, Size]]:
    """Return links between ports and regions, and the size of each port.

    Ports are the inputs that ops read and the outputs that ops compute; none above MAX_PORTS.
    """
    links: list[tuple[str, str]] = []
    ports: dict[str, Size] = {}
    for op in program.ops:
        for v in program.input_reads[op]:
            ports[f"in {v.name}"] = (30 + SHAPE_CHAR_WIDTH * len(v.name), 24)
            links.append((f"in {v.name}", program.region_of[op].name))
    producer_of = {r: op for op in program.ops for r in op.results}
    for out in program.graph.outputs:
        if out in producer_of:
            ports[f"out {out.name}"] = (30 + SHAPE_CHAR_WIDTH * len(out.name), 24)
            links.append((program.region_of[producer_of[out]].name, f"out {out.name}"))
    return (links, ports) if len(ports) <= MAX_PORTS else ([], {})


def _edge_points(
    program: ProgramView,
    edge: Edge,
    region_layouts: Mapping[str, DiagramLayout[Op]],
    program_layout: DiagramLayout[str],
    ops: Mapping[Op, Box],
    regions: Mapping[str, Box],
) -> tuple[Point, ...]:
    """Return the points of an edge: its ends and the bends between them; none if too long."""
    producer_box, consumer_box = ops[edge.producer], ops[edge.consumer]
    producer_region = program.region_of[edge.producer].name
    consumer_region = program.region_of[edge.consumer].name
    if producer_region == consumer_region:
        bends_inside = region_layouts[producer_region].bends.get((edge.producer, edge.consumer))
        if bends_inside is None:
            return ()
        box = regions[producer_region]
        indent = box.x + (box.width - region_layouts[producer_region].width) / 2
        bends = tuple((indent + x, box.y + REGION_TITLE_HEIGHT + y) for x, y in bends_inside)
    else:
        bends_between = program_layout.bends.get((producer_region, consumer_region))
        if bends_between is None:
            return ()
        exit_point = (
            producer_box.x + producer_box.width / 2,
            regions[producer_region].y + regions[producer_region].height,
        )
        bends = (
            exit_point,
            *bends_between,
            (consumer_box.x + consumer_box.width / 2, regions[consumer_region].y),
        )
    start = (producer_box.x + producer_box.width / 2, producer_box.y + producer_box.height)
    end = (consumer_box.x + consumer_box.width / 2, consumer_box.y)
    return (start, *bends, end)
