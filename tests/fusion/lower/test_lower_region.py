"""Lowering cases: the kernel's text, its verification, and its values against the graph's."""

from pathlib import Path

import pytest
import torch

from tests.support.cases import Case, accept, read_cases
from tests.support.kernels import lower_graph, run_interpreter, run_llvm, schedules
from tests.support.numbers import plain_inputs, sizes_of
from tests.support.partition_runner import copy_inputs, run_lowered, view_of_memory
from tofuse.analysis.alias import AliasAnalysis
from tofuse.fusion.lower.lower_region import LoweredRegion, lower_region
from tofuse.fusion.rounding import values_to_round
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph, Value, show_graph
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.region import Region
from tofuse.ops.check_graph import check_graph
from tofuse.ops.check_kernel import check_kernel
from tofuse.ops.reference import run_graph

CASES = read_cases(Path(__file__).parent / "lower_region.txt")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_text(case: Case, request: pytest.FixtureRequest):
    graph = parse_graph(case.before)
    assert show_graph(graph) == case.before
    check_graph(graph)
    kernel = lower_graph(graph).kernel
    check_kernel(kernel)
    text = repr(kernel)
    assert repr(parse_kernel(text)) == text
    if request.config.getoption("--accept"):
        accept(case, text)
    else:
        assert text == case.after


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case: Case):
    graph = parse_graph(case.before)
    inputs, sizes = inputs_of(graph), sizes_of(graph)
    want = run_graph(graph, inputs, sizes)
    part = Partition(graph, (), AliasAnalysis(graph), ())
    region = Region("k", graph.ops, tuple(v for v in graph.outputs if v is not None))
    # rounded after every op, a kernel agrees with the graph; else, with other backends
    exact = lower_region(region, part.aliases.memrefs, rounded=values_to_round(graph, exact=True))
    for lowered in (exact, lower_graph(graph)):
        check_kernel(lowered.kernel)
        judged = outputs(lowered, part, inputs, sizes, run_interpreter)
        for v, got in judged.items() if lowered is exact else ():
            torch.testing.assert_close(got, want[v], equal_nan=True)
        for schedule in schedules(lowered.kernel):
            for threads in (1, 3):

                def run(kernel, buffers, sizes, schedule=schedule, threads=threads):
                    return run_llvm(kernel, schedule, buffers, sizes, threads)

                for v, got in outputs(lowered, part, inputs, sizes, run).items():
                    torch.testing.assert_close(got, judged[v], equal_nan=True, msg=str(schedule))


def inputs_of(graph: Graph) -> dict[Value, torch.Tensor]:
    return plain_inputs(graph, torch.Generator().manual_seed(3))


def outputs(
    lowered: LoweredRegion, part: Partition, inputs: dict[Value, torch.Tensor], sizes, run
) -> dict[Value, torch.Tensor]:
    memory = copy_inputs(part, inputs, sizes)
    run_lowered(lowered, part, memory, sizes, run)
    return {
        v: view_of_memory(v, part.aliases.memrefs[v], memory[part.aliases.memrefs[v].root], sizes)
        for v in part.graph.outputs
        if v is not None
    }
