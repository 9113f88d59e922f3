"""Lower each region of a compilation once; regions of equal structure share a kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tofuse.analysis.alias import MemRef
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.lower.lower_region import LoweredRegion, lower_region
from tofuse.fusion.region_hash import RegionStructure, region_structure
from tofuse.ir.dims import Dim
from tofuse.ir.graph import Value, device_of
from tofuse.ir.kernel import Kernel, Uniform
from tofuse.ir.region import Region
from tofuse.ir.rules import Reason, Rule
from tofuse.ir.types import is_host

KernelPass = Callable[[Kernel], Kernel]


@dataclass(frozen=True, eq=False)
class SharedKernel:
    """A kernel that may have been made for another region, and what it stands for in this one.

    `arguments` own the memory of its buffers, and `streams` maps its random streams to those of
    this region.
    """

    kernel: Kernel
    arguments: tuple[Value, ...]
    streams: Mapping[Dim, Dim]


def own_kernel(shared: SharedKernel, region: Region) -> Kernel:
    """Return the shared kernel with the name and the random streams of a region."""
    body, streams = shared.kernel.body, shared.streams
    if any(first != own for first, own in streams.items()):
        body = tuple(
            replace(s, stream=streams[s.stream]) if isinstance(s, Uniform) else s for s in body
        )
    return replace(shared.kernel, name=region.name, body=body)


@dataclass(frozen=True, eq=False)
class LoweringMemo:
    """The kernels of one compilation, after the passes that do not depend on a schedule."""

    passes: Sequence[KernelPass]
    structures: dict[Hashable, RegionStructure] = field(default_factory=dict)  # by region
    # by structure: the first region of it with its kernel, or the reason why it has none
    entries: dict[Hashable, tuple[RegionStructure, LoweredRegion | Reason]] = field(
        default_factory=dict
    )

    def kernel(
        self, region: Region, storage: Mapping[Value, MemRef], rounded: frozenset[str]
    ) -> Kernel:
        """Return the same kernel for regions of equal structure; raise LoweringError if none."""
        return self._find(region, storage, rounded)[2].kernel

    def lower(
        self, region: Region, storage: Mapping[Value, MemRef], rounded: frozenset[str]
    ) -> SharedKernel:
        """Return the kernel of a region; raise LoweringError if it has none."""
        structure, first, lowered = self._find(region, storage, rounded)
        values = dict(zip(first.values, structure.values, strict=True))
        streams = dict(zip(first.streams, structure.streams, strict=True))
        return SharedKernel(lowered.kernel, tuple(values[v] for v in lowered.arguments), streams)

    def _find(
        self, region: Region, storage: Mapping[Value, MemRef], rounded: frozenset[str]
    ) -> tuple[RegionStructure, RegionStructure, LoweredRegion]:
        """Return the structures of a region and of the first that equals it, and its kernel."""
        memrefs = tuple(map(storage.get, (*region.inputs, *region.outputs)))
        key = region.ops, region.outputs, memrefs, rounded
        if key not in self.structures:
            self.structures[key] = region_structure(region, storage, rounded)
        structure = self.structures[key]
        if structure.key not in self.entries:
            lowered = _lower(region, storage, rounded, self.passes)
            self.entries[structure.key] = structure, lowered
        first, lowered = self.entries[structure.key]
        if isinstance(lowered, Reason):
            raise LoweringError(lowered)
        return structure, first, lowered


def _lower(
    region: Region,
    storage: Mapping[Value, MemRef],
    rounded: frozenset[str],
    passes: Sequence[KernelPass],
) -> LoweredRegion | Reason:
    """Lower a region and run the passes over its kernel."""
    device = device_of(region.ops)
    try:
        lowered = lower_region(region, storage, rounded=rounded)
        kernel = mark_host_scalars(lowered.kernel, lowered.arguments, device)
    except LoweringError as e:
        return e.reason
    for kernel_pass in passes:
        kernel = kernel_pass(kernel)
    return replace(lowered, kernel=kernel)


def mark_host_scalars(kernel: Kernel, arguments: tuple[Value, ...], device: str) -> Kernel:
    """Return the kernel with scalars and seeds in CPU memory marked: a GPU gets them by value.

    Raise LoweringError for any other tensor that is on another device.
    """
    if is_host(device):
        return kernel
    seeds = {s.seed for s in kernel.body if isinstance(s, Uniform)}
    buffers = []
    for b, v in zip(kernel.buffers, arguments, strict=True):
        if v.type.device != device:
            if not v.type.on_host or b.role != "in":
                raise LoweringError(Rule.TENSOR_ON_OTHER_DEVICE())
            if v.type.numel != 1 and b.name not in seeds:
                raise LoweringError(Rule.TENSOR_ON_CPU())
            b = replace(b, role="host")
        buffers.append(b)
    return replace(kernel, buffers=tuple(buffers))
