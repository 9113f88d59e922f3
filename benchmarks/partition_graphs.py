"""Graphs of about any number of ops, and the partitioner that runs on them."""

from collections.abc import Callable

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.cost.machine import Machine
from tofuse.driver.pipeline import cost_oracle, partition
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Attr, Graph, Op, Operand, Value
from tofuse.ir.parse_arguments import parse_arguments
from tofuse.ir.types import DType, TensorType
from tofuse.ops.result_types import infer_type

SIZE = (64, 64)


class GraphBuilder:
    """Builds a graph op by op."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.ops: list[Op] = []

    def input(self, *shape: int) -> Value:
        self.inputs.append(Value(TensorType(shape, DType.F32, "cpu"), f"x{len(self.inputs)}"))
        return self.inputs[-1]

    def __call__(self, kind: str, *operands: Operand, **attrs: Attr) -> Value:
        result = Value(infer_type(kind, operands, attrs), f"v{len(self.ops)}")
        self.ops.append(Op(kind, operands, (result,), tuple(attrs.items())))
        return result

    def row_sums(self, x: Value) -> Value:
        """Add the sum of each row, broadcast along the row."""
        total = self("sum", x, dims=(1,), dtype=DType.F32)
        return self("broadcast", total, shape=SIZE, dims=(0,))

    def graph(self, *outputs: Value) -> Graph:
        return Graph(tuple(self.inputs), tuple(self.ops), outputs)


def chain(size: int) -> Graph:
    """Elementwise ops, each reading the previous one."""
    p = GraphBuilder()
    x = p.input(*SIZE)
    for k in range(size):
        x = p("sin" if k % 2 else "neg", x)
    return p.graph(x)


def ladder(size: int) -> Graph:
    """x = f(x) + g(x): every step doubles the number of paths."""
    p = GraphBuilder()
    x = p.input(*SIZE)
    for _ in range(size // 3):
        x = p("add", p("sin", x), p("neg", x))
    return p.graph(x)


def wide(size: int) -> Graph:
    """One value with many readers, and a tree of additions."""
    p = GraphBuilder()
    x = p.input(*SIZE)
    layer = [p("sin", x) for _ in range(size // 2)]
    while len(layer) > 1:
        pairs = zip(layer[::2], layer[1::2], strict=False)
        layer = [p("add", a, b) for a, b in pairs] + layer[len(layer) // 2 * 2 :]
    return p.graph(*layer)


def independent(size: int) -> Graph:
    """Many small programs on separate tensors."""
    p, outputs = GraphBuilder(), []
    for k in range(size // 4):
        x, y = p.input(5 + k % 7, 3 + k % 5), p.input(5 + k % 7, 3 + k % 5)
        outputs.append(p("neg", p("mul", p("add", p("sin", x), y), x)))
    return p.graph(*outputs)


def norms(size: int) -> Graph:
    """Norms of rows with residual connections."""
    p = GraphBuilder()
    x = p.input(*SIZE)
    for _ in range(size // 8):
        centred = p("sub", x, p.row_sums(x))
        x = p("add", x, p("mul", centred, p.row_sums(p("mul", centred, centred))))
    return p.graph(x)


def views(size: int) -> Graph:
    """Elementwise ops between reshapes and transposes."""
    p = GraphBuilder()
    x = p.input(*SIZE)
    for k in range(size // 5):
        x = p("reshape", p("sin", p("reshape", x, shape=(4, 16, 64))), shape=SIZE)
        x = p("neg", p("permute", x, dims=(1, 0)) if k % 2 else x)
    return p.graph(x)


def calls(size: int) -> Graph:
    """Library calls between elementwise chains, with residual connections."""
    p = GraphBuilder()
    x = p.input(*SIZE)
    for _ in range(size // 10):
        h = p("exp", p("sin", p("neg", p("sin", x))))
        attrs: dict[str, Attr] = {
            "target": "aten.mm.default",
            "args": parse_arguments("$0, $0"),
            "shape": SIZE,
            "dtype": DType.F32,
        }
        h = p("opaque", h, **attrs)
        x = p("add", x, p("neg", p("sin", p("exp", h))))
    return p.graph(x)


def partition_on_cpu(graph: Graph, fuel: int | None = None) -> Partition:
    """Partition for a machine with default costs."""
    target = host_target(2)
    oracle = cost_oracle(target, Machine())
    oracles = RegionEvaluator(oracle.evaluate, oracle.costs_of, oracle.lowerings)
    return partition(graph, oracles, fuel=fuel)


PARTITION_GRAPHS: tuple[Callable[[int], Graph], ...] = (
    chain,
    ladder,
    wide,
    independent,
    norms,
    views,
    calls,
)
