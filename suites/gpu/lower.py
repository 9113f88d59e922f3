"""Lower captured graphs to the tile programs that a GPU of some capability would run."""

from collections.abc import Callable
from dataclasses import dataclass

from suites.gpu.capture import Example, capture_graphs
from tofuse.backends.llvm.load import host_target
from tofuse.backends.triton.emit import emit, launch_parameters
from tofuse.capture.aot.aot_graphs import AtenGraph
from tofuse.capture.lower.convert import convert
from tofuse.capture.lower.effect_tokens import remove_effect_tokens
from tofuse.config import make_config
from tofuse.cost.machine_source import assumed_machine
from tofuse.driver.assign_executors import requested_kernels
from tofuse.driver.codegen import generate_kernels
from tofuse.driver.oracle import CostOracle
from tofuse.driver.pipeline import codegen_context, fuse, optimized_graph
from tofuse.executors import executors_of
from tofuse.ir.kernel import Kernel
from tofuse.ir.tile import GpuTarget, TileProgram
from tofuse.schedule.build_tiles import build_tiles


@dataclass(frozen=True, eq=False)
class GpuKernel:
    """A kernel of a program: its launches, and their Triton text."""

    phase: str
    program: TileProgram
    text: str

    def launch_text(self, k: int) -> str:
        """Return the text of one launch, without the functions that it calls."""
        functions = self.text.split(f"def k{k}(")[1]
        return functions.split("@triton.jit")[0]

    def aligned(self, k: int) -> tuple[bool, ...]:
        """Return which parameters of a launch are multiples of 16, if all tensors are aligned."""
        names = [name for name, _ in launch_parameters(self.program.nests[k])]
        return self.program.call.aligned(names)


def captured_kernels(make: Callable[[], Example]) -> list[tuple[str, Kernel]]:
    """Return the kernels of a program with their phases, in the order in which they run."""
    return [(g.phase, kernel) for g in capture_graphs(make) for kernel in _lower(g)]


def gpu_kernel(phase: str, kernel: Kernel, target: GpuTarget) -> GpuKernel:
    """Return the launches of a kernel on a GPU."""
    tiles = build_tiles(kernel, target)
    return GpuKernel(phase, tiles, emit(tiles))


def _lower(graph: AtenGraph) -> list[Kernel]:
    """Return the kernels that the compiler makes of a graph."""
    config = make_config({})
    captured = convert(remove_effect_tokens(graph.gm), graph.phase, memory=graph.memory)
    host = host_target(1)
    oracle = CostOracle(host, assumed_machine(host, config))
    memory = captured.eager_memory
    assert memory is not None
    saved = frozenset(memory.saved_arguments if graph.phase == "backward" else ())
    optimized = optimized_graph(captured, graph.phase)
    part = fuse(optimized, memory.peak(graph.phase), saved, oracle, config)
    requested, _ = requested_kernels(part, {}, executors_of(config))
    generated, _ = generate_kernels(requested, codegen_context(part, oracle, config))
    return [g.nest.kernel for g in generated if isinstance(g.nest, TileProgram)]
