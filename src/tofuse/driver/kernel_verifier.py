"""Wrap kernels so that every call is compared with the reference, under `verify=True`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tofuse.config import Config
from tofuse.driver.codegen import CodegenContext, GeneratedKernel, generate_kernels
from tofuse.driver.load_kernels import LoadedKernels, load_kernels
from tofuse.ir.graph import device_of
from tofuse.ir.region import Region
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.report.repro import region_graph, repro_folder, write_mismatch_repro
from tofuse.runtime.launch import Launcher
from tofuse.runtime.verify_kernels import Inputs, VerifiedKernel, save_inputs


def verified_regions(bindings: Mapping[Region, KernelBinding], config: Config) -> frozenset[Region]:
    """Return the regions whose kernels are compared: all on the CPU, if `verify` is set."""
    if not config.verify:
        return frozenset()
    return frozenset(r for r in bindings if device_of(r.ops) == "cpu")


def verified_kernel(
    region: Region, binding: KernelBinding, loaded: LoadedKernels, context: CodegenContext
) -> VerifiedKernel:
    """Return a region's kernel, wrapped so that every call is verified."""
    memrefs, config = context.partition.aliases.memrefs, context.config

    def build(part: Region) -> VerifiedKernel | None:
        results = generate_kernels({part: None}, context)
        compiling = [g for g in results if isinstance(g, GeneratedKernel) and g.error is None]
        alone = load_kernels(compiling, context.partition, config)
        found = alone.bindings.get(part)
        return None if found is None else verified_kernel(part, found, alone, context)

    def write(inputs: Inputs, sizes: Mapping[str, int], error: str) -> Path | None:
        text = save_inputs(inputs, repro_folder(config.dump), region.name)
        return write_mismatch_repro(region_graph(region, memrefs), text, sizes, error, config.dump)

    launcher = loaded.launchers[binding.kernel]
    assert isinstance(launcher, Launcher)  # only kernels on the CPU are compared
    return VerifiedKernel(region, memrefs, launcher, binding, build, write)
