"""Load generated kernels as machine code, and report those that do not compile."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tofuse.backends.llvm.emit import phase_functions
from tofuse.backends.llvm.load import CodeLibrary
from tofuse.backends.thread_map import thread_map
from tofuse.backends.triton.emit import launch_parameters
from tofuse.backends.triton.group import SHARED_PARAMETERS, call_parameters
from tofuse.backends.triton.load import LaunchSpec, TritonModule
from tofuse.cache.artifact import bind_runtime
from tofuse.config import Config
from tofuse.cost.thresholds import MAX_GROUPED_CALLS, MAX_GROUPED_WORKSPACE
from tofuse.disk_store import store_of
from tofuse.driver.codegen import GeneratedKernel
from tofuse.errors import CompileError, TofuseWarning
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import device_of
from tofuse.ir.nest import Nest
from tofuse.ir.tile import TileProgram
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.region import Partition, Region
from tofuse.report.repro import write_repro
from tofuse.runtime.cuda import CudaLauncher, capability, device_index
from tofuse.runtime.gemm_launch import GemmLauncher
from tofuse.runtime.kernel_code import kernel_code
from tofuse.runtime.launch import Launcher, thread_count
from tofuse.schedule.alias_legality import legal_aliases, legal_tile_aliases

Launch = Launcher | CudaLauncher | GemmLauncher
# of 8 bytes, in CUDA 12.1 or newer from capability 7.0 on: CUDA C++ Programming Guide, "__global__
# Function Parameters"; Triton adds two
MAX_PARAMETERS = 32764 // 8 - 2
MAX_THREADS = 16  # that compile at once: LLVM and ptxas take memory for each


@dataclass(frozen=True, eq=False)
class LoadedKernels:
    """Machine code of all distinct kernels, the binding of each region, and notes on failures."""

    launchers: Sequence[Launch]
    bindings: Mapping[Region, KernelBinding]
    notes: Sequence[str]


def load_kernels(
    generated: Sequence[GeneratedKernel], part: Partition, config: Config, library: CodeLibrary
) -> LoadedKernels:
    """Load every distinct kernel; a region whose kernel does not compile gets no binding."""
    bind_runtime(config)
    on_cpu = [g for g in generated if isinstance(g.nest, Nest) and g.error is None]
    threads = compiling_threads()
    library.compile(list(dict.fromkeys(map(_text, on_cpu))), store_of(config), threads)
    modules = compile_for_gpu(generated, threads)
    launchers: list[Launch] = []
    bindings: dict[Region, KernelBinding] = {}
    number_of: dict[str | TileProgram, int] = {}
    notes: list[str] = []
    for g in generated:
        text = _text(g)
        # a text for a GPU does not say all: sizes without a mask, types of pointers, warps
        key = text if isinstance(g.nest, Nest) else g.nest
        if key not in number_of:
            try:
                launcher = _load_kernel(g, text, config, library, modules)
            except CompileError as e:
                notes.append(_report_compile_failure(g, part, config, e))
                continue
            number_of[key] = len(launchers)
            launchers.append(launcher)
        bindings[g.region] = _bind(g, number_of[key])
    return LoadedKernels(launchers, bindings, notes)


def compiling_threads() -> int:
    """Return how many threads compile at once."""
    return min(thread_count(), MAX_THREADS)


def group_limit(program: TileProgram) -> int:
    """Return how many calls of a GPU kernel can be one launch: their parameters are limited."""
    symbols = program.kernel.symbols
    most = max(len(call_parameters(launch_parameters(n), symbols)) for n in program.nests)
    return min(MAX_GROUPED_CALLS, (MAX_PARAMETERS - SHARED_PARAMETERS) // max(1, most))


def _text(g: GeneratedKernel) -> str:
    """Return the text of a kernel without its name, so that equal kernels have one text."""
    return g.source.replace(f"@{g.nest.kernel.name}", "@kernel")


def compile_for_gpu(
    generated: Sequence[GeneratedKernel], threads: int
) -> Mapping[TileProgram, TritonModule]:
    """Return the modules of GPU kernels, with code for aligned tensors; threads compile.

    A text that does not compile has no module, or one without that code.
    """
    modules: dict[TileProgram, TritonModule] = {}
    tasks: list[tuple[TritonModule, int, tuple[bool, ...]]] = []
    for g in generated:
        if isinstance(g.nest, Nest) or g.error is not None or g.nest in modules:
            continue
        with suppress(CompileError):
            module = modules[g.nest] = _triton_module(g, g.nest)
            tasks += [(module, k, aligned) for k, aligned in aligned_launches(module, g.nest)]

    def compile_launch(task: tuple[TritonModule, int, tuple[bool, ...]]) -> None:
        module, k, aligned = task
        with suppress(CompileError):  # it is raised again when the launcher asks for it
            module.binary(k, aligned)

    thread_map(compile_launch, tasks, threads)
    return modules


def aligned_launches(
    module: TritonModule, program: TileProgram
) -> list[tuple[int, tuple[bool, ...]]]:
    """Return each launch, with which of its parameters are multiples of 16 for aligned tensors."""
    names = ([name for name, _ in spec.parameters] for spec in module.specs)
    return [(k, program.call.aligned(own)) for k, own in enumerate(names)]


def _triton_module(g: GeneratedKernel, program: TileProgram) -> TritonModule:
    specs = [
        LaunchSpec(tuple(launch_parameters(nest)), nest.tiling.warps) for nest in program.nests
    ]
    return TritonModule(g.source, specs, capability(device_of(g.region.ops))[0])


def _load_kernel(
    g: GeneratedKernel,
    text: str,
    config: Config,
    library: CodeLibrary,
    modules: Mapping[TileProgram, TritonModule],
) -> Launch:
    """Return machine code for a kernel; raises CompileError."""
    if g.error is not None:
        raise CompileError(g.error)
    if isinstance(g.nest, Nest):
        phases, store = phase_functions(g.nest), store_of(config)
        loaded = library.load_text(text, ["kernel", *(f"kernel.{n}" for n, _ in phases)], store)
        code = kernel_code(g.nest.kernel, loaded.digest, phases, g.nest.block_bytes)
        entry, *parts = loaded.functions
        return Launcher(code, entry, parts)
    module = modules.get(g.nest) or _triton_module(g, g.nest)
    parameters = [spec.parameters for spec in module.specs]
    device = device_index(device_of(g.region.ops))
    return CudaLauncher(g.nest.call, parameters, module.binary, device)


def _bind(g: GeneratedKernel, number: int) -> KernelBinding:
    """Return how a region calls kernel `number`."""
    if isinstance(g.nest, TileProgram):
        limit = group_limit(g.nest)
        alone = limit < 2 or not all(isinstance(n, int) for n in g.sizes)
        written = None if alone else tuple(b.role == "out" for b in g.nest.kernel.buffers)
        pairs = legal_tile_aliases(g.nest)
        symbols, aligned = g.nest.kernel.symbols, g.nest.call.aligned_sizes
        sizes = tuple(k for k, symbol in enumerate(symbols) if symbol in aligned)
        return KernelBinding(number, g.arguments, g.sizes, written, pairs, limit, sizes)
    launch_alone = size_hint(g.nest.block_bytes) > MAX_GROUPED_WORKSPACE
    written = None if launch_alone else tuple(b.role != "in" for b in g.nest.kernel.buffers)
    return KernelBinding(number, g.arguments, g.sizes, written, legal_aliases(g.nest))


def _report_compile_failure(
    g: GeneratedKernel, part: Partition, config: Config, error: CompileError
) -> str:
    """Write a reproducer, then warn, or raise under `strict`; return the note for the report."""
    name = g.nest.kernel.name
    path = write_repro(g.region, part.aliases.memrefs, str(error), config.dump)
    reproducer = "" if path is None else f"; {path} reproduces it"
    lines = dict.fromkeys(repr(op.loc) for op in g.region.ops if op.loc is not None)
    where = f" (from {', '.join(lines)})" if lines else ""
    if config.strict:
        raise CompileError(f"{name}{where} does not compile: {error}{reproducer}") from error
    message = f"tofuse runs {name}{where} through PyTorch: {error}{reproducer}"
    warnings.warn(message, TofuseWarning, stacklevel=2)
    return f"{name}: {error}"
