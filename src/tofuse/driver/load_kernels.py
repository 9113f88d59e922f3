"""Load generated kernels as machine code, and report those that do not compile."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from tofuse.backends.llvm.emit import phase_functions
from tofuse.backends.llvm.load import load_text
from tofuse.backends.triton.emit import parameters
from tofuse.backends.triton.load import Launch as TritonLaunch
from tofuse.backends.triton.load import load as load_triton
from tofuse.cache.artifact import (
    bind_runtime,
    load_kernel,
)
from tofuse.config import Config
from tofuse.cost.machine_source import store_of
from tofuse.driver.codegen import (
    GeneratedKernel,
)
from tofuse.errors import CompileError
from tofuse.ir.dims import size_hint
from tofuse.ir.graph import device_of
from tofuse.ir.nest import Nest
from tofuse.ir.region import Partition, Region
from tofuse.ir.tile import TileProgram
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.report.repro import write_repro
from tofuse.runtime.cuda import CudaLauncher, capability, device_index
from tofuse.runtime.gemm_launch import GemmLauncher
from tofuse.runtime.launch import Launcher, kernel_code
from tofuse.schedule.alias_legality import legal_aliases

Launch = Launcher | CudaLauncher | GemmLauncher


LARGE_WORKSPACE = 1 << 16  # bytes a thread: a kernel with more is launched by itself


def load_kernels(
    built: Sequence[GeneratedKernel], part: Partition, config: Config
) -> tuple[list[Launch], dict[Region, KernelBinding], list[str]]:
    """Machine code for every distinct kernel; regions that do not compile are left out."""
    bind_runtime(config)
    launchers: list[Launch] = []
    calls: dict[Region, KernelBinding] = {}
    numbers: dict[str, int] = {}
    broken: list[str] = []
    for b in built:
        name = b.nest.kernel.name
        text = b.source.replace(f"@{name}", "@kernel")
        key = f"{device_of(b.region.ops)} {text}"
        if key not in numbers:
            try:
                made = _launcher(b, text, config)
            except CompileError as e:
                broken.append(_report_compile_failure(b, part, config, e))
                continue
            numbers[key] = len(launchers)
            launchers.append(made)
        calls[b.region] = _kernel_call(b, numbers[key])
    return launchers, calls, broken


def _launcher(b: GeneratedKernel, text: str, config: Config) -> Launch:
    """Machine code for a region; raises CompileError."""
    if b.broken is not None:
        raise CompileError(b.broken)
    if isinstance(b.nest, Nest):
        names, kept = phase_functions(b.nest), store_of(config)
        key = load_text(text, ["kernel", *(f"kernel.{n}" for n, _ in names)], kept)
        return load_kernel(kernel_code(b.nest.kernel, key, names, b.nest.block_bytes), kept)
    given = [tuple(parameters(nest)) for nest in b.nest.nests]
    launches = [
        TritonLaunch(f"k{k}", given[k], nest.tiling.warps) for k, nest in enumerate(b.nest.nests)
    ]
    device = device_of(b.region.ops)
    made = load_triton(text, launches, capability(device)[0])
    return CudaLauncher(b.nest, given, made.binary, device_index(device))


def _kernel_call(b: GeneratedKernel, number: int) -> KernelBinding:
    """A GPU's kernel is launched by itself, and writes over nothing that it reads."""
    if isinstance(b.nest, TileProgram):
        return KernelBinding(number, b.arguments, b.sizes, None)
    alone = size_hint(b.nest.block_bytes) > LARGE_WORKSPACE
    written = None if alone else tuple(x.role != "in" for x in b.nest.kernel.buffers)
    return KernelBinding(number, b.arguments, b.sizes, written, legal_aliases(b.nest))


def _report_compile_failure(
    b: GeneratedKernel, part: Partition, config: Config, error: CompileError
) -> str:
    """Warn, or raise under `strict`, with a file that shows the failure again."""
    name = b.nest.kernel.name
    path = write_repro(b.region, part.storage, str(error), config.dump)
    at = "" if path is None else f"; {path} shows it again"
    lines = dict.fromkeys(repr(op.loc) for op in b.region.ops if op.loc is not None)
    where = f" (from {', '.join(lines)})" if lines else ""
    if config.strict:
        raise CompileError(f"{name}{where} does not compile: {error}{at}") from error
    message = f"tofuse runs {name}{where} through PyTorch: {error}{at}"
    warnings.warn(message, stacklevel=2)
    return f"{name}: {error}"
