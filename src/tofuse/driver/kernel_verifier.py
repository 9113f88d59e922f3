"""Wrap kernels so that every call is compared with the reference, under `verify=True`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tofuse.config import Config
from tofuse.driver.codegen import CodegenContext, RejectedRegion, generate_kernel
from tofuse.driver.load_kernels import Launch, load_kernels
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


def kernel_verifier(
    context: CodegenContext,
) -> Callable[[Region, KernelBinding, Sequence[Launch]], VerifiedKernel]:
    """Return a function that wraps a region's kernel so that every call is verified."""
    part, config = context.partition, context.config

    def verify_alone(region: Region) -> VerifiedKernel | None:
        generated = generate_kernel(region, context)
        if isinstance(generated, RejectedRegion) or generated.error is not None:
            return None
        loaded = load_kernels([generated], part, config)
        binding = loaded.bindings.get(region)
        return None if binding is None else verify(region, binding, loaded.launchers)

    def verify(
        region: Region, binding: KernelBinding, launchers: Sequence[Launch]
    ) -> VerifiedKernel:
        def write(inputs: Inputs, sizes: Mapping[str, int], error: str) -> Path | None:
            text = save_inputs(inputs, repro_folder(config.dump), region.name)
            graph = region_graph(region, part.aliases.memrefs)
            return write_mismatch_repro(graph, text, sizes, error, config.dump)

        launcher = launchers[binding.kernel]
        assert isinstance(launcher, Launcher)  # only kernels on the CPU are compared
        return VerifiedKernel(region, part.aliases.memrefs, launcher, binding, verify_alone, write)

    return verify
