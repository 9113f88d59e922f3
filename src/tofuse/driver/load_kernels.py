"""Load generated kernels as machine code, and report those that do not compile."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tofuse.backends.code_library import CodeLibrary
from tofuse.backends.cpu.runtime.launch import thread_count
from tofuse.backends.launcher import KernelLauncher
from tofuse.backends.target import Backend, GroupedCalls, LaunchGroup, Linking
from tofuse.cache.artifact import bind_runtime
from tofuse.config import Config
from tofuse.disk_store import store_of
from tofuse.driver.codegen import CodegenContext, GeneratedKernel
from tofuse.errors import CompileError, TofuseWarning
from tofuse.ir.plan import Plan, launches_by_group
from tofuse.ir.region import Region
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.report.repro import write_repro

MAX_THREADS = 16  # that compile at once: LLVM and ptxas take memory for each


@dataclass(frozen=True, eq=False)
class LoadedKernels:
    """Machine code of all distinct kernels, the binding of each region, and notes on failures."""

    launchers: Sequence[KernelLauncher]
    bindings: Mapping[Region, KernelBinding]
    notes: Sequence[str]


def linking_of(library: CodeLibrary, config: Config) -> Linking:
    """Return that code goes into a library; as many threads compile as torch uses."""
    return Linking(library, store_of(config), compiling_threads())


def compiling_threads() -> int:
    """Return how many threads compile at once."""
    return min(thread_count(), MAX_THREADS)


def load_kernels(
    generated: Sequence[GeneratedKernel], context: CodegenContext, linking: Linking
) -> LoadedKernels:
    """Load every distinct kernel; a region whose kernel does not compile gets no binding."""
    bind_runtime(context.config)
    kernels = {g.region: g for g in generated}
    loaded: dict[Region, KernelLauncher | CompileError] = {
        r: CompileError(g.error) for r, g in kernels.items() if g.error is not None
    }
    compiling = [r for r in kernels if r not in loaded]
    for backend, regions in context.oracle.by_backend(compiling).items():
        launchers = backend.load([kernels[r].emitted for r in regions], linking)
        loaded |= zip(regions, launchers, strict=True)
    number_of: dict[KernelLauncher, int] = {}
    bindings: dict[Region, KernelBinding] = {}
    notes: list[str] = []
    for g in generated:
        launcher = loaded[g.region]
        if isinstance(launcher, CompileError):
            notes.append(_report_compile_failure(g, context, launcher))
            continue
        number = number_of.setdefault(launcher, len(number_of))
        facts = context.oracle.backend_of_region(g.region).launch_facts(g.call)
        bindings[g.region] = KernelBinding(number, g.arguments, g.call.sizes, facts)
    return LoadedKernels(list(number_of), bindings, notes)


def load_groups(
    plan: Plan,
    generated: Sequence[GeneratedKernel],
    loaded: LoadedKernels,
    context: CodegenContext,
    threads: int,
) -> dict[int, LaunchGroup]:
    """Return what launches a group of kernels, by its number, where that takes code of its own."""
    kernels = {loaded.bindings[g.region].kernel: g for g in generated}
    by_backend: dict[Backend, dict[int, GroupedCalls]] = {}
    for number, launches in launches_by_group(plan).items():
        kernel = launches[0].kernel
        g, launcher = kernels[kernel], loaded.launchers[kernel]
        sizes = (tuple(n for n in x.sizes if isinstance(n, int)) for x in launches)
        groups = by_backend.setdefault(context.oracle.backend_of_region(g.region), {})
        groups[number] = GroupedCalls(g.scheduled, launcher, tuple(sizes))
    exact, found = context.config.rounds_as_eager, dict[int, LaunchGroup]()
    for backend, groups in by_backend.items():
        found |= backend.load_groups(groups, exact, threads)
    return found


def _report_compile_failure(
    g: GeneratedKernel, context: CodegenContext, error: CompileError
) -> str:
    """Write a reproducer, then warn, or raise under `strict`; return the note for the report."""
    name, config = g.scheduled.kernel.name, context.config
    memrefs = context.partition.aliases.memrefs
    path = write_repro(g.region, memrefs, str(error), config.dump)
    reproducer = "" if path is None else f"; {path} reproduces it"
    lines = dict.fromkeys(repr(op.loc) for op in g.region.ops if op.loc is not None)
    where = f" (from {', '.join(lines)})" if lines else ""
    if config.strict:
        raise CompileError(f"{name}{where} does not compile: {error}{reproducer}") from error
    message = f"tofuse runs {name}{where} through PyTorch: {error}{reproducer}"
    warnings.warn(message, TofuseWarning, stacklevel=2)
    return f"{name}: {error}"
