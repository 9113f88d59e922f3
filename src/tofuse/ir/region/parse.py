"""Parse the text form of a partition."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tofuse.ir.dims import Dim
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.graph.parse import read_graph
from tofuse.ir.line_reader import END, LineReader, read_lines
from tofuse.ir.region.data import REQUESTED, MemRef, Partition, Region, Verdict
from tofuse.ir.region.rules import Reason, Rule


def parse_partition(text: str) -> Partition:
    """Parse the output of `show_partition`. Raises ParseError, which names the line."""
    lines = read_lines(text)
    size = next((k for k, line in enumerate(lines, 1) if line.closes), len(lines))
    return _Parser(read_graph(lines[:size])).partition(lines[size:])


class _Parser:
    """`values` and `ops` hold the values and ops of the graph by name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {v.name: v for v in graph.values()}
        self.ops: dict[str, Op] = {}
        for k, op in enumerate(graph.ops):
            self.ops[op.results[0].name if op.results else f"#{k}"] = op
        self.storage = {v: MemRef(v, 0, v.layout) for v in self.values.values()}
        self.concat_slices: dict[Value, MemRef] = {}
        self.regions: list[Region] = []
        self.verdicts: list[Verdict] = []
        self.rounded: list[str] = []

    def partition(self, lines: Sequence[LineReader]) -> Partition:
        for line in lines:
            self.line(line)
        return Partition(
            self.graph,
            tuple(self.regions),
            self.storage,
            tuple(self.verdicts),
            concat_slices=self.concat_slices,
            rounded=frozenset(self.rounded),
        )

    def line(self, line: LineReader) -> None:
        match line.word():
            case "kernel" | "call" as kind:
                name, ops, outputs = line.word(), [], []
                line.expect(":")
                while not line.skip("->"):
                    ops.append(line.lookup(self.ops, "is not an op"))
                while not line.skip(END):
                    outputs.append(line.lookup(self.values))
                self.regions.append(Region(name, tuple(ops), tuple(outputs), kind == "call"))
            case "memref":
                v = line.lookup(self.values)
                self.storage[v] = MemRef(
                    line.expect("=").lookup(self.values),
                    line.expect("+").dim(),
                    line.expect("{").dims("}"),
                )
                line.expect(END)
            case "concat_slice":
                v = line.lookup(self.values)
                concat, offset = line.expect("=").lookup(self.values), line.expect("+").dim()
                self.concat_slices[v] = MemRef(
                    concat, offset, (self.storage.get(v) or MemRef(v, 0, v.layout)).strides
                )
                line.expect(END)
            case "no_memref":
                self.storage.pop(line.lookup(self.values), None)
                line.expect(END)
            case "rounded":
                while not line.skip(END):
                    self.rounded.append(line.lookup(self.values).name)
            case "edge":
                self.verdicts.append(_verdict(line))
            case word:
                raise line.error(f"{word!r} is neither a region nor a memref nor a verdict")

    def strides(self, v: Value) -> tuple[Dim, ...]:
        return self.storage[v].strides if v in self.storage else v.layout


def _verdict(line: LineReader) -> Verdict:
    producer, consumer = line.word(), line.expect("->").word()
    fused = not line.skip("not")
    rule = line.expect("fused").expect(":").until("; bytes")
    text = rule.removesuffix(REQUESTED[fused])
    return Verdict(
        producer,
        consumer,
        fused,
        _reason(text, line),
        requested=text != rule,
        bytes_saved=line.number(),
        launches_saved=line.expect(";").expect("launches").number(),
        recompute=line.expect(";").expect("recompute").real(),
        predicted_us=line.expect(";").expect("us").real(),
        loc=line.loc(),
    )


def _reason(text: str, line: LineReader) -> Reason:
    for rule in Rule:
        pattern = "(.*)".join(map(re.escape, rule.value.split("{}")))
        match = re.fullmatch(pattern, text)
        if match is not None:
            return rule(*match.groups())
    raise line.error(f"there is no rule {text!r}")
