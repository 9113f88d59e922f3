"""Choose by timing: which products kernels compute, then how each region runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace

import torch

from tofuse.analysis.alias import is_view
from tofuse.backends.launcher import TimedCall
from tofuse.cache.programs import source_digest
from tofuse.driver.autotune import BuildProgram, apply_choices, measured_choices, timed_call
from tofuse.driver.choice import Choice
from tofuse.driver.choose_products import IN_KERNEL, measured_products, product_notes
from tofuse.driver.codegen import CodegenContext
from tofuse.errors import TofuseError
from tofuse.graph_partition import Partition
from tofuse.ir.executor import KERNELS
from tofuse.ir.graph import Graph, Value
from tofuse.ir.region import Region
from tofuse.passes.contract_products import contract_products
from tofuse.runtime.sample_inputs import sample_tensors
from tofuse.runtime.timing import real_tensors

Fuse = Callable[[Graph], Partition]


@dataclass(frozen=True, eq=False)
class TunedPartition:
    """A partition with the choices for its regions, and notes on what was measured."""

    partition: Partition
    choices: Mapping[Region, Choice]
    notes: tuple[str, ...] = ()


def tune_partition(
    graph: Graph,
    context: CodegenContext,
    fuse_part: Fuse,
    fuse_whole: Fuse,
    build_program: BuildProgram,
) -> TunedPartition:
    """Return the partition that is fastest by measurement; `context` has the one of the graph.

    `fuse_part` partitions a graph of a few regions, `fuse_whole` the program.
    """
    measured = _measure_products(graph, context, fuse_part, build_program)
    in_kernels = {v for v, choice in measured.items() if choice.kind == IN_KERNEL}
    # the addition after a product may have become part of the call
    folded = [op for op in graph.ops if op.kind == "add" and op.result in in_kernels]
    chosen = in_kernels | {v for op in folded for v in op.inputs}
    part, lone = context.partition, set[Value]()
    contracted = contract_products(graph, chosen)
    if contracted is not graph:
        part = fuse_whole(contracted)
        lone = _lone_products(part, graph, chosen)
    if lone:
        part = fuse_whole(contract_products(graph, chosen - lone))
    context = replace(context, partition=part)
    choices = measured_choices(context, build_program)
    notes = product_notes({v: choice for v, choice in measured.items() if v not in lone})
    return TunedPartition(*apply_choices(part, choices), tuple(notes))


def _lone_products(part: Partition, graph: Graph, chosen: Set[Value]) -> set[Value]:
    """Return the products that no other op is fused with in the whole program.

    They were faster in a kernel with a neighbour, which memory or other readers keep apart here.
    """
    others = set(graph.values()) - chosen
    kernels = (r for r in part.regions if not r.library)
    lone = (r for r in kernels if others.isdisjoint(_computed(r)))
    return {v for r in lone for v in r.outputs if v in chosen}


def _computed(region: Region) -> list[Value]:
    return [v for op in region.ops if not is_view(op) for v in op.results]


def _measure_products(
    graph: Graph, context: CodegenContext, fuse: Fuse, build_program: BuildProgram
) -> dict[Value, Choice]:
    """Return where each product of a graph is faster: in the library, or in a kernel."""
    config = context.config
    backends = [context.oracle.backend(v.type.device) for v in graph.values()]
    contracting = [b for b in dict.fromkeys(backends) if b.contracts_products]
    if not contracting or config.executors[:1] != (KERNELS,):
        return {}
    if any(b.timing_obstacle() is not None for b in contracting):
        return {}

    def build(graph: Graph) -> TimedCall | None:
        try:
            inputs = sample_tensors(graph.inputs)
            return timed_call(fuse(graph), {}, config, build_program, inputs)
        except (TofuseError, torch.OutOfMemoryError):
            return None

    # what kernels are like, and how fast the library's products are
    key = (config.precision, *config.executors, source_digest(), *_matmul_settings())
    with real_tensors():
        return measured_products(context, build, key)


def _matmul_settings() -> tuple[str, ...]:
    """Return PyTorch's settings of the speed and precision of its products on a GPU."""
    matmul = torch.backends.cuda.matmul
    settings = (
        torch.get_float32_matmul_precision(),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )
    return tuple(map(str, settings))
