"""Partitions are deterministic, acyclic, and made in near-linear time."""

from collections.abc import Callable

import pytest

from tests.support.processor_speed import relative_time
from tofuse.backends.llvm.load import host_target
from tofuse.cost.nest import Machine
from tofuse.driver.oracle import CostOracle
from tofuse.driver.pipeline import partition
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import lower_region
from tofuse.fusion.partition.profitability import CostOracles
from tofuse.fusion.partition.region_evaluator import EvaluationCache
from tofuse.ir.fusion_hints import NO_FUSE
from tofuse.ir.graph import Attr, Graph, Op, Operand, Value
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.region import Partition
from tofuse.ir.region.print import show_partition
from tofuse.ir.types import DType, TensorType
from tofuse.ops.result_types import make_op

OPS = 2000
MAX_LOOPS = 15  # of plain Python loops; measured: 3 to 7, which is 0.05 to 0.3 s
SIZE = (64, 64)


class Program:
    """Builds a graph op by op."""

    def __init__(self):
        self.inputs: list[Value] = []
        self.ops: list[Op] = []

    def input(self, *shape: int) -> Value:
        self.inputs.append(Value(TensorType(shape, DType.F32, "cpu"), f"x{len(self.inputs)}"))
        return self.inputs[-1]

    def __call__(self, kind: str, *operands: Operand, **attrs: Attr) -> Value:
        self.ops.append(make_op(kind, operands, attrs, name=f"v{len(self.ops)}"))
        return self.ops[-1].result

    def row_sums(self, x: Value) -> Value:
        """The sum of each row, broadcast along the row."""
        total = self("sum", x, dims=(1,), dtype=DType.F32)
        return self("broadcast", total, shape=SIZE, dims=(0,))

    def graph(self, *outputs: Value) -> Graph:
        return Graph(tuple(self.inputs), tuple(self.ops), outputs)


def chain(size: int) -> Graph:
    p = Program()
    x = p.input(*SIZE)
    for k in range(size):
        x = p("sin" if k % 2 else "neg", x)
    return p.graph(x)


def ladder(size: int) -> Graph:
    """x = f(x) + g(x): the number of paths doubles with every step"""
    p = Program()
    x = p.input(*SIZE)
    for _ in range(size // 3):
        x = p("add", p("sin", x), p("neg", x))
    return p.graph(x)


def wide(size: int) -> Graph:
    """One value with many readers, and a tree of additions."""
    p = Program()
    x = p.input(*SIZE)
    layer = [p("sin", x) for _ in range(size // 2)]
    while len(layer) > 1:
        pairs = zip(layer[::2], layer[1::2], strict=False)
        layer = [p("add", a, b) for a, b in pairs] + layer[len(layer) // 2 * 2 :]
    return p.graph(*layer)


def independent(size: int) -> Graph:
    """Many small programs on separate tensors."""
    p, outputs = Program(), []
    for k in range(size // 4):
        x, y = p.input(5 + k % 7, 3 + k % 5), p.input(5 + k % 7, 3 + k % 5)
        outputs.append(p("neg", p("mul", p("add", p("sin", x), y), x)))
    return p.graph(*outputs)


def norms(size: int) -> Graph:
    p = Program()
    x = p.input(*SIZE)
    for _ in range(size // 8):
        centred = p("sub", x, p.row_sums(x))
        x = p("add", x, p("mul", centred, p.row_sums(p("mul", centred, centred))))
    return p.graph(x)


def views(size: int) -> Graph:
    p = Program()
    x = p.input(*SIZE)
    for k in range(size // 5):
        x = p("reshape", p("sin", p("reshape", x, shape=(4, 16, 64))), shape=SIZE)
        x = p("neg", p("permute", x, dims=(1, 0)) if k % 2 else x)
    return p.graph(x)


def calls(size: int) -> Graph:
    """Library calls between elementwise chains, with residual connections."""
    p = Program()
    x = p.input(*SIZE)
    for _ in range(size // 10):
        h = p("exp", p("sin", p("neg", p("sin", x))))
        attrs: dict[str, Attr] = {
            "target": "aten.mm.default",
            "args": "$0, $0",
            "shape": SIZE,
            "dtype": DType.F32,
        }
        h = p("opaque", h, **attrs)
        x = p("add", x, p("neg", p("sin", p("exp", h))))
    return p.graph(x)


PROGRAMS: tuple[Callable[[int], Graph], ...] = (
    chain,
    ladder,
    wide,
    independent,
    norms,
    views,
    calls,
)
NAMES = [make.__name__ for make in PROGRAMS]


def partition_on_cpu(graph: Graph, fuel: int | None = None) -> Partition:
    target = host_target(2)
    oracles = CostOracles(CostOracle(target, Machine()).reject, None, None)
    return partition(graph, oracles, machine=Machine(), fuel=fuel)


@pytest.mark.parametrize("make", PROGRAMS, ids=NAMES)
def test_partition_time_is_near_linear(make):
    graph = make(OPS)
    assert 0.8 * OPS < len(graph.ops) < 1.2 * OPS
    assert relative_time(lambda: partition_on_cpu(graph), MAX_LOOPS) <= MAX_LOOPS


@pytest.mark.parametrize("make", PROGRAMS, ids=NAMES)
def test_partition_is_deterministic_and_acyclic(make):
    graph = make(200)
    part = partition_on_cpu(graph)
    assert show_partition(part) == show_partition(partition_on_cpu(make(200)))
    order = {v: k for k, r in enumerate(part.regions) for op in r.ops for v in op.results}
    for k, region in enumerate(part.regions):
        assert all(order.get(v, -1) < k for v in region.inputs)


@pytest.mark.parametrize("make", PROGRAMS, ids=NAMES)
def test_fuel_limits_merges_to_the_first_ones(make):
    whole = partition_on_cpu(make(100))
    computing = sum(not r.library for r in partition_on_cpu(make(100), 0).regions)
    names = [(v.producer, v.consumer) for v in whole.fusions]
    for fuel in (0, 1, len(names) // 2, len(names)):
        part = partition_on_cpu(make(100), fuel)
        assert [(v.producer, v.consumer) for v in part.fusions] == names[:fuel]
        assert sum(not r.library for r in part.regions) == computing - min(fuel, len(names))


@pytest.mark.parametrize("returned, kernels", [(False, [101, 1]), (True, [63, 38, 1])])
def test_elementwise_extensions_are_not_evaluated(returned, kernels):
    """Each evaluation lowers and schedules a kernel of all ops merged so far."""
    p, evaluations = Program(), list[int]()
    sums = [p("sum", p.input(*SIZE), dims=(1,), dtype=DType.F32)]
    for _ in range(50):
        sums.append(p("sin", sums[-1]))
        sums.append(p("add", *sums[-2:]))
    ends = [p("broadcast", sums[-1], shape=SIZE, dims=(d,)) for d in (0, 1)]
    graph = p.graph(p("mul", *ends), *(sums if returned else ()))
    oracle, cache = CostOracle(host_target(2), Machine()), EvaluationCache()

    def reject(kernel):
        evaluations.append(len(kernel.body))
        return oracle.reject(kernel)

    part = partition(graph, CostOracles(reject, None, None), cache=cache, machine=Machine())
    assert [len([op for op in r.ops if op.kind != "broadcast"]) for r in part.regions] == kernels
    assert len(evaluations) < 10
    before = len(evaluations)
    partition(graph, CostOracles(reject, None, None), cache=cache, machine=Machine())
    assert len(evaluations) == before


def test_fusion_hints_in_graph_text_are_obeyed():
    text = """\
graph(x: f32[8]) {{
  v0 = sin(x) : f32[8]  # at m.py:1
  v1 = cos(v0) : f32[8]  # at m.py:2{}
  v2 = exp(v1) : f32[8]  # at m.py:3
  return v2
}}"""
    assert len(partition_on_cpu(parse_graph(text.format(""))).regions) == 1
    assert len(partition_on_cpu(parse_graph(text.format(f" ({NO_FUSE} cos)"))).regions) == 3


def test_elementwise_ops_of_equal_shape_on_separate_views_are_checked():
    """Views of different parts of a tensor need separate loops."""
    part = partition_on_cpu(
        parse_graph("""graph(x: f32[2,8,96]) {
  v0 = slice(x, start=(0, 0, 0), stop=(2, 8, 32), step=(1, 1, 1)) : f32[2,8,32]{768,96,1}
  v1 = reshape(v0, shape=(2, 8, 2, 16)) : f32[2,8,2,16]{768,96,16,1}
  v2 = permute(v1, dims=(0, 2, 1, 3)) : f32[2,2,8,16]{768,16,96,1}
  v3 = mul(v2, 0.5) : f32[2,2,8,16]
  v4 = slice(x, start=(0, 0, 64), stop=(2, 8, 96), step=(1, 1, 1)) : f32[2,8,32]{768,96,1}
  v5 = reshape(v4, shape=(2, 8, 2, 16)) : f32[2,8,2,16]{768,96,16,1}
  v6 = permute(v5, dims=(0, 2, 1, 3)) : f32[2,2,8,16]{768,16,96,1}
  v7 = exp(v6) : f32[2,2,8,16]
  return v3, v7
}""")
    )
    for region in part.regions:
        kernel = coalesce(lower_region(region, part.storage).kernel)
        assert CostOracle(host_target(2), Machine()).reject(kernel) is None
