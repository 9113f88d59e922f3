"""Lay out a program as a diagram: ops inside regions, regions in layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Region
from tofuse.report.diagram_layout import DiagramLayout, Gaps, Point, Size, layered_layout
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
class Port:
    """An input that ops read, or an output that an op computes."""

    value: Value
    output: bool


Node = Union[Region, Port]  # noqa: UP007
Item = Union[Node, Op]  # noqa: UP007


@dataclass(frozen=True)
class Diagram:
    """The boxes of regions, ops and ports, and the points of each edge (by number).

    An edge without points is too long to draw.
    """

    boxes: Mapping[Item, Box]
    edges: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def draw_diagram(program: ProgramView) -> Diagram:
    """Lay out the ops of each region, then the regions, inputs and outputs."""
    drawn = set(program.region_of.values())
    regions = (r.region for r in program.report.regions if r.region in drawn)
    inside = {r: _layout_region(program, r) for r in regions}
    region_sizes: dict[Node, Size] = {}
    for r, layout in inside.items():
        width = max(layout.width, len(r.name) * NAME_CHAR_WIDTH + 60) + 2 * REGION_PADDING
        region_sizes[r] = (width, layout.height + REGION_TITLE_HEIGHT + REGION_PADDING)
    links = _port_links(program)
    ports = dict.fromkeys(x for link in links for x in link if isinstance(x, Port))
    sizes: dict[Node, Size] = {p: _port_size(p) for p in ports if not p.output}
    sizes |= region_sizes | {p: _port_size(p) for p in ports if p.output}
    links += [(program.region_of[e.producer], program.region_of[e.consumer]) for e in program.edges]
    outside = layered_layout(sizes, links, REGION_GAPS)
    boxes: dict[Item, Box] = {x: Box(*outside.positions[x], *sizes[x]) for x in sizes}
    for r, layout in inside.items():
        left, top = _origin(boxes[r], layout)
        for op, (x, y) in layout.positions.items():
            boxes[op] = Box(left + x, top + y, *op_size(op))
    edges = tuple(_edge_points(program, edge, inside, outside, boxes) for edge in program.edges)
    return Diagram(boxes, edges, outside.width, outside.height)


def _origin(box: Box, layout: DiagramLayout[Op]) -> Point:
    """Return the place of a layout inside the box of its region."""
    return box.x + (box.width - layout.width) / 2, box.y + REGION_TITLE_HEIGHT


def _port_size(port: Port) -> Size:
    return 30 + SHAPE_CHAR_WIDTH * len(port.value.name), 24


def op_size(op: Op) -> Size:
    """Return the size of an op's box, which shows its name and the shape of its result."""
    width = 28 + NAME_CHAR_WIDTH * len(short_name(op)) + SHAPE_CHAR_WIDTH * len(op_shape(op))
    return width, OP_HEIGHT


def op_shape(op: Op) -> str:
    """Return the first result's shape as text, such as `64 × 256`, or "" without results."""
    if not op.results:
        return ""
    return " × ".join(map(str, op.results[0].shape)) or "scalar"


def _layout_region(program: ProgramView, region: Region) -> DiagramLayout[Op]:
    edges = [
        (e.producer, e.consumer)
        for e in program.edges
        if program.region_of[e.producer] is program.region_of[e.consumer] is region
    ]
    sizes = {op: op_size(op) for op in region.ops if op in program.region_of}
    return layered_layout(sizes, edges, OP_GAPS)


def _port_links(program: ProgramView) -> list[tuple[Node, Node]]:
    """Return links between ports and regions; none if there are more than MAX_PORTS ports."""
    region_of = program.region_of
    links: list[tuple[Node, Node]] = [
        (Port(v, False), region_of[op]) for op in program.ops for v in program.input_reads[op]
    ]
    producer_of = {r: op for op in program.ops for r in op.results}
    for out in program.graph.outputs:
        if out in producer_of:
            links.append((region_of[producer_of[out]], Port(out, True)))
    ports = {x for link in links for x in link if isinstance(x, Port)}
    return links if len(ports) <= MAX_PORTS else []


def _edge_points(
    program: ProgramView,
    edge: Edge,
    inside: Mapping[Region, DiagramLayout[Op]],
    outside: DiagramLayout[Node],
    boxes: Mapping[Item, Box],
) -> tuple[Point, ...]:
    """Return the points of an edge: its ends and the bends between them; none if too long."""
    producer_box, consumer_box = boxes[edge.producer], boxes[edge.consumer]
    start = (producer_box.x + producer_box.width / 2, producer_box.y + producer_box.height)
    end = (consumer_box.x + consumer_box.width / 2, consumer_box.y)
    source, target = program.region_of[edge.producer], program.region_of[edge.consumer]
    if source is target:
        bends = inside[source].bends.get((edge.producer, edge.consumer))
        left, top = _origin(boxes[source], inside[source])
        return () if bends is None else (start, *((left + x, top + y) for x, y in bends), end)
    bends = outside.bends.get((source, target))
    if bends is None:
        return ()
    exit_point = start[0], boxes[source].y + boxes[source].height
    return (start, exit_point, *bends, (end[0], boxes[target].y), end)
