"""Parse the text form of a partition."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tofuse.errors import ParseError
from tofuse.ir.dims import Dim, parse_dim
from tofuse.ir.graph import (
    Graph,
    Loc,
    Op,
    Value,
)
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.region.data import (
    MemRef,
    Partition,
    Region,
    Verdict,
)


def parse_partition(text: str) -> Partition:
    """Parse the output of `show_partition`. Raises ParseError."""
    graph_text, brace, rest = text.partition("\n}")
    return _Parser(parse_graph(graph_text + brace)).run(rest.splitlines())


@dataclass(eq=False)
class _Parser:
    graph: Graph
    values: dict[str, Value] = field(default_factory=dict)
    ops: dict[str, Op] = field(default_factory=dict)

    def run(self, rows: list[str]) -> Partition:
        self.values = {v.name: v for v in self.graph.inputs}
        for k, op in enumerate(self.graph.ops):
            self.values |= {r.name: r for r in op.results}
            self.ops[op.results[0].name if op.results else f"#{k}"] = op
        storage = {v: MemRef(v, 0, v.layout) for v in self.values.values()}
        concat_slices: dict[Value, MemRef] = {}
        regions: list[Region] = []
        verdicts: list[Verdict] = []
        rounded: frozenset[str] = frozenset()
        for row in filter(None, map(str.strip, rows)):
            if match := _REGION.fullmatch(row):
                regions.append(self.region(match))
            elif match := _MEMREF.fullmatch(row):
                root, strides = self.value(match["root"]), _dims(match["strides"])
                storage[self.value(match["name"])] = MemRef(
                    root, parse_dim(match["offset"]), strides
                )
            elif match := _CONCAT_SLICE.fullmatch(row):
                concat, v = self.value(match["root"]), self.value(match["name"])
                concat_slices[v] = MemRef(concat, parse_dim(match["offset"]), storage[v].strides)
            elif match := _NO_MEMREF.fullmatch(row):
                del storage[self.value(match["name"])]
            elif row.startswith("rounded "):
                rounded = frozenset(self.value(name).name for name in row.split()[1:])
            elif match := _EDGE.fullmatch(row):
                verdicts.append(_verdict(match))
            else:
                raise ParseError(f"{row!r} is neither a region nor a memref nor a verdict")
        return Partition(
            self.graph,
            tuple(regions),
            storage,
            tuple(verdicts),
            concat_slices=concat_slices,
            rounded=rounded,
        )

    def region(self, match: re.Match[str]) -> Region:
        for name in match["ops"].split():
            if name not in self.ops:
                raise ParseError(f"region {match['name']}: there is no op {name}")
        ops = tuple(self.ops[name] for name in match["ops"].split())
        outputs = tuple(self.value(name) for name in match["outputs"].split())
        return Region(match["name"], ops, outputs, library=match["kind"] == "call")

    def value(self, name: str) -> Value:
        if name not in self.values:
            raise ParseError(f"{name} is not defined")
        return self.values[name]


def _verdict(match: re.Match[str]) -> Verdict:
    loc = None if match["file"] is None else Loc(match["file"], int(match["line"]))
    return Verdict(
        match["producer"],
        match["consumer"],
        match["not"] is None,
        match["rule"],
        int(match["bytes"]),
        int(match["launches"]),
        float(match["recompute"]),
        float(match["us"]),
        loc,
    )


def _dims(text: str) -> tuple[Dim, ...]:
    return tuple(parse_dim(d) for d in text.split(",") if d)


_REGION = re.compile(
    r"(?P<kind>kernel|call) (?P<name>[^\s:]+): (?P<ops>[^>]*?) ->(?P<outputs>[^>]*)"
)
_MEMREF = re.compile(
    r"memref (?P<name>\w+) = (?P<root>\w+) \+ (?P<offset>\S+) \{(?P<strides>[^}]*)\}"
)
_CONCAT_SLICE = re.compile(r"concat_slice (?P<name>\w+) = (?P<root>\w+) \+ (?P<offset>\S+)")
_NO_MEMREF = re.compile(r"no_memref (?P<name>\w+)")
_EDGE = re.compile(
    r"edge (?P<producer>\S+) -> (?P<consumer>\S+) (?P<not>not )?fused: (?P<rule>.*); "
    r"bytes (?P<bytes>-?\d+); launches (?P<launches>-?\d+); recompute (?P<recompute>\S+); "
    r"us (?P<us>\S+?)(?: # at (?P<file>.*):(?P<line>-?\d+))?"
)
