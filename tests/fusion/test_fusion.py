"""Partitions over several devices, and definitions for a GPU; the tests need no GPU."""

from collections.abc import Sequence

import torch

from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.triton.emit import emit, launch_parameters
from tofuse.cost.machine import Machine
from tofuse.driver.pipeline import cost_oracle, partition, run_graph_passes
from tofuse.frontends.definition import lower_statements
from tofuse.frontends.execute_definition import captured_graph
from tofuse.frontends.lowering import Lowering
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import lower_region
from tofuse.fusion.lowering_memo import mark_host_scalars
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph, device_of
from tofuse.ir.kernel import Kernel
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.schedule import Target
from tofuse.ir.tile import GpuTarget
from tofuse.nvfuser import DataType, FusionDefinition
from tofuse.ops.check_graph import check_graph


def partition_for_gpu(graph: Graph) -> Partition:
    check_graph(graph)
    oracle = cost_oracle(Target(8, 1), Machine())
    oracles = RegionEvaluator(oracle.evaluate, oracle.costs_of, oracle.lowerings)
    return partition(run_graph_passes(graph), oracles)


def kernels(part: Partition) -> list[tuple[str, Kernel]]:
    found = []
    for region in part.regions:
        if not region.library:
            lowered, device = lower_region(region, part.aliases.memrefs), device_of(region.ops)
            kernel = mark_host_scalars(coalesce(lowered.kernel), lowered.arguments, device)
            found.append((device, kernel))
    return found


def roles(kernel: Kernel) -> Sequence[str]:
    return [b.role for b in kernel.buffers]


def test_cpu_scalar_is_passed_to_a_gpu_kernel_by_value():
    part = partition_for_gpu(
        parse_graph(
            """graph(x: f32[64]@cuda:0, s: f32[]) {
              v0 = exp(s) : f32[]
              v1 = broadcast(v0, shape=(64), dims=()) : f32[64]
              v2 = mul(x, v1) : f32[64]@cuda:0
              return v2
            }"""
        )
    )
    (cpu, first), (gpu, second) = kernels(part)
    assert (cpu, gpu) == ("cpu", "cuda:0")
    assert roles(first) == ["in", "out"] and roles(second) == ["in", "host", "out"]
    assert [v.rule for v in part.verdicts] == ["on different devices"]
    (nest,) = build_tiles(second, GpuTarget()).nests
    assert [kind for _, kind in launch_parameters(nest)] == [
        "*fp32",
        "fp64",
        "*fp32",
        "*i32",
        "i64",
    ]


def test_gpu_definition_takes_scalars_and_seeds_by_value():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        scale = fd.define_scalar(None, dtype=DataType.Double)
        drawn = fd.ops.uniform(
            fd.define_scalar(0.0), fd.define_scalar(1.0), fd.ops.shape(x), dtype=DataType.Float
        )
        fd.add_output(fd.ops.add(fd.ops.mul(x, scale), drawn))
    fd.execute([torch.ones(2, 3), 2.0])
    executor = fd._executor
    assert executor is not None
    low, _ = lower_statements(Lowering(device="cuda:0"), executor.statements)
    part = partition_for_gpu(captured_graph(low, "definition").graph)
    last = kernels(part)[-1][1]
    assert sorted(roles(last)) == ["host", "host", "in", "out"]
    assert "_uniform(" in emit(build_tiles(last, GpuTarget()))
