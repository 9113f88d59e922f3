"""Lower captured graphs to the tile programs that a GPU of some capability would run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from suites.gpu.capture import Example, capture_graphs
from suites.gpu.traffic import traffic_ratio
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.triton.emit import emit, launch_parameters
from tofuse.capture.aot.aot_graphs import AtenGraph
from tofuse.capture.lower.convert import convert
from tofuse.capture.lower.effect_tokens import remove_effect_tokens
from tofuse.config import Config, make_config
from tofuse.cost.machine_source import assumed_machine
from tofuse.driver.assign_executors import requested_kernels
from tofuse.driver.codegen import CodegenContext, generate_kernels
from tofuse.driver.pipeline import codegen_context, cost_oracle, fuse, optimized_graph
from tofuse.executors import executors_of
from tofuse.graph_partition import Partition
from tofuse.ir.kernel import Kernel
from tofuse.ir.tile import GpuTarget, TileProgram
from tofuse.passes.contract_products import contract_products


@dataclass(frozen=True, eq=False)
class GpuKernel:
    """A kernel of a program: its launches, their Triton text, and the values of size symbols."""

    phase: str
    program: TileProgram
    text: str
    sizes: Mapping[str, int]

    def launch_text(self, k: int) -> str:
        """Return the text of one launch, without the functions that it calls."""
        functions = self.text.split(f"def k{k}(")[1]
        return functions.split("@triton.jit")[0]

    def aligned(self, k: int) -> tuple[bool, ...]:
        """Return which parameters of a launch are multiples of 16, if all tensors are aligned."""
        names = [name for name, _ in launch_parameters(self.program.nests[k])]
        aligned = self.program.call.aligned(names)
        return tuple(
            a and self.sizes.get(n, 0) % 16 == 0 for n, a in zip(names, aligned, strict=True)
        )


@dataclass(frozen=True, eq=False)
class CapturedKernel:
    """A kernel of a program, the values of its size symbols, and their largest values."""

    phase: str
    kernel: Kernel
    sizes: Mapping[str, int]
    bounds: Mapping[str, int]


def captured_kernels(make: Callable[[], Example], contract: bool = False) -> list[CapturedKernel]:
    """Return the kernels of a program with their phases, in the order in which they run.

    With `contract`, they compute its matrix products.
    """
    return [kernel for g in capture_graphs(make) for kernel in _lower(g, contract)]


def gpu_kernel(captured: CapturedKernel, target: GpuTarget) -> GpuKernel:
    """Return the launches of a kernel on a GPU."""
    tiles = build_tiles(captured.kernel, target, bounds=captured.bounds)
    return GpuKernel(captured.phase, tiles, emit(tiles), captured.sizes)


def traffic_ratios(make: Callable[[], Example], contract: bool = False) -> list[float]:
    """Return the bytes that the kernels of each graph move, over the least."""
    return [traffic_ratio(_partition(g, contract)[0]) for g in capture_graphs(make)]


def _partition(graph: AtenGraph, contract: bool) -> tuple[Partition, CodegenContext, Config]:
    """Return the partition of a graph, and the context to generate its kernels."""
    config = make_config({})
    captured = convert(remove_effect_tokens(graph.gm), graph.phase, memory=graph.memory)
    host = host_target(1)
    oracle = cost_oracle(host, assumed_machine(host, config))
    memory = captured.eager_memory
    assert memory is not None
    saved = frozenset(memory.saved_arguments if graph.phase == "backward" else ())
    optimized = optimized_graph(captured, graph.phase, captured.graph)
    if contract:
        results = {r for op in optimized.ops for r in op.results}
        optimized = contract_products(optimized, results)
    part = fuse(optimized, memory.peak(graph.phase), saved, oracle=oracle, config=config)
    return part, codegen_context(part, oracle, config), config


def _lower(graph: AtenGraph, contract: bool) -> list[CapturedKernel]:
    """Return the kernels that the compiler makes of a graph."""
    part, context, config = _partition(graph, contract)
    requested, _ = requested_kernels(part, {}, executors_of(config))
    generated, _ = generate_kernels(requested, context)
    found = []
    for g in generated:
        if isinstance(g.scheduled, TileProgram):
            pairs = zip(g.scheduled.kernel.symbols, g.call.sizes, strict=True)
            sizes = {symbol: n for symbol, n in pairs if isinstance(n, int)}
            bounds = g.scheduled.nests[0].bounds
            found.append(CapturedKernel(graph.phase, g.scheduled.kernel, sizes, bounds))
    return found
