"""Parse the text form of a partition."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tofuse.analysis.alias import AliasAnalysis, MemRef
from tofuse.errors import VerifyError
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph, Op
from tofuse.ir.line_reader import END, LineReader, read_lines, split_block
from tofuse.ir.parse_graph import read_graph
from tofuse.ir.region import REQUESTED, Region, Verdict
from tofuse.ir.rules import Reason, Rule
from tofuse.ops.check_graph import check_graph


def parse_partition(text: str) -> Partition:
    """Parse the output of `show_partition`. Raises ParseError, which names the line."""
    lines, rest = split_block(read_lines(text))
    graph = read_graph(lines)
    try:
        check_graph(graph)
    except VerifyError as error:
        raise lines[0].error(str(error).replace("\n", " ")) from error
    return _Parser(graph).partition(rest)


class _Parser:
    """`values` and `ops` hold the values and ops of the graph by name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {v.name: v for v in graph.values()}
        self.ops: dict[str, Op] = {}
        for k, op in enumerate(graph.ops):
            self.ops[op.results[0].name if op.results else f"#{k}"] = op
        self.aliases = AliasAnalysis(graph)
        self.regions: list[Region] = []
        self.verdicts: list[Verdict] = []
        self.rounded: list[str] = []

    def partition(self, lines: Sequence[LineReader]) -> Partition:
        for line in lines:
            self.line(line)
        return Partition(
            self.graph,
            tuple(self.regions),
            self.aliases,
            tuple(self.verdicts),
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
            case "memref" | "concat_slice" | "no_memref" as kind:
                self.memory(kind, line)
            case "rounded":
                while not line.skip(END):
                    self.rounded.append(line.lookup(self.values).name)
            case "edge":
                self.verdicts.append(_verdict(line))
            case word:
                raise line.error(f"{word!r} is neither a region nor a memref nor a verdict")

    def memory(self, kind: str, line: LineReader) -> None:
        """Read a line that repeats what the analysis says of the graph, and check that it does."""
        v, said = line.lookup(self.values), None
        known = (self.aliases.slices if kind == "concat_slice" else self.aliases.memrefs).get(v)
        if kind != "no_memref":
            root, offset = line.expect("=").lookup(self.values), line.expect("+").dim()
            if kind == "memref":
                strides = line.expect("{").dims("}")
            else:
                strides = v.layout if known is None else known.strides
            said = MemRef(root, offset, strides)
        if said != known:
            raise line.error(f"this is not the memory that the graph gives {v.name}")
        line.expect(END)


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
