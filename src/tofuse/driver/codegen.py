"""Generate kernels: backends schedule what was lowered for the cost oracle, and emit text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tofuse.backends.target import Backend, ChosenSchedule, EmittedKernel, KernelCall, KernelRequest
from tofuse.config import Config
from tofuse.driver.oracle import CostOracle
from tofuse.errors import CompileError
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.lowering_memo import SharedKernel, own_kernel
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Value
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Region
from tofuse.ir.rules import Reason
from tofuse.ir.schedule import ScheduledKernel
from tofuse.ops.check_kernel import check_kernel

LastKernelPass = Callable[[Kernel, tuple[Value, ...], frozenset[Value]], Kernel]


@dataclass(frozen=True, eq=False)
class CodegenContext:
    """The state that all regions of a partition share: the oracle and the options.

    `nontemporal` are the results whose stores bypass the caches; `last_passes` take a region's
    kernel, its arguments and these results. `mutations` are pairs of an argument and the new value
    that the program writes into it.
    """

    partition: Partition
    nontemporal: frozenset[Value]
    last_passes: Sequence[LastKernelPass]
    oracle: CostOracle
    config: Config
    mutations: frozenset[tuple[Value, Value]] = frozenset()


@dataclass(frozen=True, eq=False)
class ScheduledRegion:
    """A region with its scheduled kernel, which others may share, and the kernel's arguments."""

    region: Region
    call: KernelCall
    arguments: tuple[Value, ...]

    @property
    def scheduled(self) -> ScheduledKernel:
        return self.call.scheduled


@dataclass(frozen=True, eq=False)
class GeneratedKernel(ScheduledRegion):
    """A region with its scheduled kernel as text; `error` says why there is no text."""

    source: str
    error: str | None = None

    @property
    def emitted(self) -> EmittedKernel:
        return EmittedKernel(self.scheduled, self.source)


Rejected = dict[Region, str]  # why a region has no kernel


def generate_kernels(
    schedules: Mapping[Region, ChosenSchedule], context: CodegenContext
) -> tuple[list[GeneratedKernel], Rejected]:
    """Return nests and texts; regions that differ only in sizes share one.

    Also return why a region has no loop nest, such as a lone reduction of a broadcast tensor.
    If a region's schedule is None, the heuristics choose it.
    """
    generated: dict[Region, GeneratedKernel] = {}
    rejected: Rejected = {}
    for backend, regions in context.oracle.by_backend(schedules).items():
        own = {r: schedules[r] for r in regions}
        scheduled, without = schedule_kernels(own, backend, context)
        rejected |= without
        texts: dict[ScheduledKernel, tuple[str, str | None]] = {}
        for s in scheduled:
            if s.scheduled not in texts:
                check_kernel(s.scheduled.kernel)  # 8 us per statement; compiling one takes 1000 us
                texts[s.scheduled] = _emit(s.scheduled, backend, context)
            text = texts[s.scheduled]
            generated[s.region] = GeneratedKernel(s.region, s.call, s.arguments, *text)
    return [generated[r] for r in schedules if r in generated], rejected


def schedule_kernels(
    schedules: Mapping[Region, ChosenSchedule], backend: Backend, context: CodegenContext
) -> tuple[list[ScheduledRegion], Rejected]:
    """Return the scheduled kernels of a backend's regions, and why others have none."""
    lowered, rejected = _lower(schedules, context)
    requests = [_request(r, shared, schedules[r], context) for r, shared in lowered.items()]
    if context.config.verify:  # then each region has a kernel of its own
        calls = [call for request in requests for call in backend.schedule([request])]
    else:
        calls = backend.schedule(requests)
    found = []
    for (region, shared), call in zip(lowered.items(), calls, strict=True):
        if isinstance(call, Reason):
            rejected[region] = str(call)
        else:
            found.append(ScheduledRegion(region, call, shared.arguments))
    return found, rejected


def _lower(
    regions: Iterable[Region], context: CodegenContext
) -> tuple[dict[Region, SharedKernel], Rejected]:
    part, lowerings = context.partition, context.oracle.lowerings
    lowered: dict[Region, SharedKernel] = {}
    rejected: Rejected = {}
    for region in regions:
        try:
            lowered[region] = lowerings.lower(region, part.aliases.memrefs, part.rounded)
        except LoweringError as e:
            rejected[region] = str(e)
    return lowered, rejected


def _request(
    region: Region, shared: SharedKernel, schedule: ChosenSchedule, context: CodegenContext
) -> KernelRequest:
    finish = partial(_finish, shared=shared, region=region, context=context)
    names = [(v, b.name) for v, b in zip(shared.arguments, shared.kernel.buffers, strict=True)]
    updates = frozenset((a, b) for v, a in names for w, b in names if (v, w) in context.mutations)
    return KernelRequest(shared.kernel, finish, updates, schedule)


def _finish(
    kernel: Kernel, shared: SharedKernel, region: Region, context: CodegenContext
) -> Kernel:
    """Return a region's own kernel after the last passes."""
    kernel = own_kernel(replace(shared, kernel=kernel), region)
    for kernel_pass in context.last_passes:
        kernel = kernel_pass(kernel, shared.arguments, context.nontemporal)
    return kernel


def _emit(
    scheduled: ScheduledKernel, backend: Backend, context: CodegenContext
) -> tuple[str, str | None]:
    """Return the text of a kernel; if it has none, a comment that says why, and the error."""
    try:
        return backend.emit(scheduled, exact=context.config.rounds_as_eager), None
    except CompileError as e:
        return f"# {e}", str(e)
