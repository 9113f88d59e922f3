"""Run a partition: its kernels on flat memory, its library calls on views."""

from collections.abc import Callable, Mapping

import torch

from tests.support.numbers import TORCH_DTYPES
from tofuse.analysis.alias import MemRef
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import LoweredRegion, lower_region
from tofuse.graph_partition import Partition
from tofuse.ir.dims import evaluate
from tofuse.ir.graph import Graph, Value
from tofuse.ir.kernel import Kernel
from tofuse.ops.reference import run_graph

Sizes = Mapping[str, int]
Memory = dict[Value, torch.Tensor]
RunKernel = Callable[[Kernel, Mapping[str, torch.Tensor], Sizes], dict[str, torch.Tensor]]


def allocate_flat(v: Value, memref: MemRef, sizes: Sizes) -> torch.Tensor:
    """Return flat memory of the size that a value needs."""
    shape = [evaluate(d, sizes) for d in v.shape]
    strides = [evaluate(d, sizes) for d in memref.strides]
    span = 1 + sum(s * (n - 1) for s, n in zip(strides, shape, strict=True))
    return torch.zeros(0 if 0 in shape else span, dtype=TORCH_DTYPES[v.dtype])


def view_of_memory(v: Value, memref: MemRef, memory: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Return a value as a view of its memory."""
    shape = [evaluate(d, sizes) for d in v.shape]
    if 0 in shape:
        return torch.zeros(shape, dtype=memory.dtype)
    strides = [evaluate(d, sizes) for d in memref.strides]
    start = memory.storage_offset() + evaluate(memref.offset, sizes)
    return memory.as_strided(shape, strides, start)


def copy_inputs(part: Partition, inputs: Mapping[Value, torch.Tensor], sizes: Sizes) -> Memory:
    memory: Memory = {}
    for v, x in inputs.items():
        memref = part.aliases.memrefs[v]
        memory[v] = allocate_flat(v, memref, sizes)
        view_of_memory(v, memref, memory[v], sizes).copy_(x)
    return memory


def run_lowered(
    lowered: LoweredRegion, part: Partition, memory: Memory, sizes: Sizes, run: RunKernel
) -> None:
    """Run one kernel and store its results in memory."""
    buffers: dict[str, torch.Tensor] = {}
    roots = dict(zip((b.name for b in lowered.kernel.buffers), lowered.arguments, strict=True))
    for b in lowered.kernel.buffers:
        root = roots[b.name]
        if b.role != "in":
            buffers[b.name] = allocate_flat(root, part.aliases.memrefs[root], sizes)
        else:
            buffers[b.name] = memory[root]
    for name, written in run(lowered.kernel, buffers, sizes).items():
        memory[roots[name]] = written


def run_partition(
    part: Partition,
    inputs: Mapping[Value, torch.Tensor],
    sizes: Sizes,
    run: RunKernel,
) -> list[torch.Tensor]:
    """Run a partitioned graph and return its outputs as new tensors."""
    memory = copy_inputs(part, inputs, sizes)
    for region in part.regions:
        if not region.library:
            lowered = lower_region(region, part.aliases.memrefs, rounded=part.rounded)
            lowered = LoweredRegion(coalesce(lowered.kernel), lowered.arguments)
            run_lowered(lowered, part, memory, sizes, run)
            continue
        operands = {
            v: view_of_memory(
                v, part.aliases.memrefs[v], memory[part.aliases.memrefs[v].root], sizes
            )
            for v in region.inputs
        }
        graph = Graph(region.inputs, region.ops, region.outputs)
        results = run_graph(graph, operands, sizes)
        for v in region.outputs:
            memory[v] = allocate_flat(v, part.aliases.memrefs[v], sizes)
            view_of_memory(v, part.aliases.memrefs[v], memory[v], sizes).copy_(results[v])
    outputs = [v for v in part.graph.outputs if v is not None]
    return [
        view_of_memory(
            v, part.aliases.memrefs[v], memory[part.aliases.memrefs[v].root], sizes
        ).clone()
        for v in outputs
    ]
