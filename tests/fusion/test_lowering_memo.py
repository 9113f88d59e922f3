"""Regions of equal structure share one kernel, with the arguments and streams of each."""

from tofuse.analysis.alias import AliasAnalysis
from tofuse.backends.cpu.backend import CpuBackend
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.config import Config
from tofuse.cost.machine import Machine
from tofuse.driver.codegen import CodegenContext, generate_kernels
from tofuse.driver.pipeline import KERNEL_PASSES, cost_oracle
from tofuse.fusion.lowering_memo import LoweringMemo
from tofuse.graph_partition import Partition
from tofuse.ir.kernel import Stmt, Uniform
from tofuse.ir.nest import For, Nest, StmtNode
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.region import Region

GRAPH = parse_graph("""forward(x: f32[8,64], y: f32[8,64], s: i64[2]) {
  a = mul(x, 2.0) : f32[8,64]
  r = uniform(s, stream=3, shape=(8, 64), dtype=f32) : f32[8,64]
  b = add(a, r) : f32[8,64]
  c = mul(y, 2.0) : f32[8,64]
  q = uniform(s, stream=5, shape=(8, 64), dtype=f32) : f32[8,64]
  d = add(c, q) : f32[8,64]
  return b, d
}""")
STORAGE = AliasAnalysis(GRAPH).memrefs
FIRST = Region("first", GRAPH.ops[:3], GRAPH.ops[2].results)
SECOND = Region("second", GRAPH.ops[3:], GRAPH.ops[5].results)


def test_equal_regions_are_lowered_once():
    memo = LoweringMemo(KERNEL_PASSES)
    first, second = (memo.lower(r, STORAGE, frozenset()) for r in (FIRST, SECOND))
    assert first.kernel is second.kernel is memo.kernel(SECOND, STORAGE, frozenset())
    assert [v.name for v in first.arguments] == ["x", "s", "b"]
    assert [v.name for v in second.arguments] == ["y", "s", "d"]
    assert second.streams == {3: 5}


def statements(nest: Nest) -> list[Stmt]:
    loops = [n for phase in nest.phases for n in phase.body if isinstance(n, For)]
    return [n.stmt for loop in loops for n in loop.body if isinstance(n, StmtNode)]


def test_code_generation_takes_what_the_oracle_kept():
    oracle = cost_oracle(host_target(2), Machine())
    part = Partition(GRAPH, (FIRST, SECOND), AliasAnalysis(GRAPH), ())
    context = CodegenContext(part, frozenset(), (), oracle, Config(verify=True))
    kernel = oracle.lowerings.kernel(FIRST, STORAGE, frozenset())
    assert oracle.evaluate(kernel, "cpu").rejection is None
    backend = oracle.backend("cpu")
    assert isinstance(backend, CpuBackend)
    nest = backend.evaluated_kernel(kernel).scheduled
    (first, second), rejected = generate_kernels({FIRST: None, SECOND: None}, context)
    assert not rejected
    assert list(backend.evaluated) == [kernel]
    assert isinstance(nest, Nest) and isinstance(first.scheduled, Nest)
    assert list(map(id, statements(first.scheduled))) == list(map(id, statements(nest)))
    assert (first.scheduled.kernel.name, second.scheduled.kernel.name) == ("first", "second")
    for generated, stream in ((first, 3), (second, 5)):
        (drawn,) = (s for s in generated.scheduled.kernel.body if isinstance(s, Uniform))
        assert drawn.stream == stream
