"""Graphs of library calls on vectors, and their partitions, for tests of peak memory."""

from tests.support.evaluators import rejecting
from tofuse.driver.pipeline import partition
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph
from tofuse.ir.kernel import Kernel
from tofuse.ir.parse_graph import parse_graph

VECTOR_BYTES = 4 * 1000


def call_line(result: str, argument: str, numel: int = 1000, effect: bool = False) -> str:
    """A library call that makes a vector."""
    attrs = f"args='$0', {'effect=True, ' if effect else ''}target='my.op.default'"
    return f"{result} = opaque({argument}, {attrs}) : f32[{numel}]"


def make_graph(*lines: str, outputs: str, inputs: str = "x: f32[1000]") -> Graph:
    body = "\n".join(f"  {line}" for line in lines)
    return parse_graph(f"graph({inputs}) {{\n{body}\n  return {outputs}\n}}")


def accept_all(kernel: Kernel) -> None:
    return None


def make_partition(graph: Graph) -> Partition:
    """The partition in program order, if every kernel is good."""
    return partition(graph, rejecting())
