"""Under `verify=True`: which kernels are compared with the reference, and how each is run alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tofuse.config import Config
from tofuse.driver.codegen import (
    RejectedRegion,
    generate_kernel,
)
from tofuse.driver.load_kernels import Launch, load_kernels
from tofuse.ir.graph import Value, device_of
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Target
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.report.repro import region_graph, repro_folder, write_mismatch_repro
from tofuse.runtime.launch import Launcher
from tofuse.runtime.verify_kernels import Inputs, VerifiedKernel, save_inputs


def verified_regions(calls: Mapping[Region, KernelBinding], config: Config) -> frozenset[Region]:
    """The regions whose kernels are held against the reference."""
    if not config.verify:
        return frozenset()
    return frozenset(r for r in calls if device_of(r.ops) == "cpu")


def kernel_verifier(
    part: Partition, streams: frozenset[Value], target: Target, config: Config
) -> Callable[[Region, KernelBinding, Sequence[Launch]], VerifiedKernel]:
    """How to run a region's kernel under `verify`."""

    def alone(region: Region) -> VerifiedKernel | None:
        made = generate_kernel(region, part, streams, target, config)
        if isinstance(made, RejectedRegion) or made.broken is not None:
            return None
        launchers, calls, _ = load_kernels([made], part, config)
        return check(region, calls[region], launchers) if region in calls else None

    def check(region: Region, call: KernelBinding, launchers: Sequence[Launch]) -> VerifiedKernel:
        def write(inputs: Inputs, sizes: Mapping[str, int], error: str) -> Path | None:
            text = save_inputs(inputs, repro_folder(config.dump), region.name)
            graph = region_graph(region, part.storage)
            return write_mismatch_repro(graph, text, sizes, error, config.dump)

        launcher = launchers[call.kernel]
        assert isinstance(launcher, Launcher)  # on the CPU, as all that is checked
        return VerifiedKernel(region, part.storage, launcher, call, alone, write)

    return check
