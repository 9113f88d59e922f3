"""The cost oracle: the backends of a compilation, which schedule each kernel once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tofuse.backends.backend_of import MakeBackend, backend_of
from tofuse.backends.target import Backend, Recorder
from tofuse.cost.kernel_cost import Evaluation
from tofuse.cost.machine import Machine
from tofuse.cost.target_costs import TargetCosts
from tofuse.fusion.lowering_memo import LoweringMemo
from tofuse.ir.graph import Graph, device_of
from tofuse.ir.kernel import Kernel
from tofuse.ir.plan import Plan
from tofuse.ir.region import Region
from tofuse.ir.schedule import Target


@dataclass(frozen=True, eq=False)
class CostOracle:
    """Evaluates kernels for fusion; code generation takes the schedules that the backends keep.

    `target` is the processor, also of programs whose kernels run on a GPU; `machine` has its costs
    for decisions.
    """

    target: Target
    machine: Machine
    lowerings: LoweringMemo
    backends: Mapping[str, MakeBackend]
    made: dict[str, Backend] = field(default_factory=dict)

    def backend(self, device: str) -> Backend:
        """Return the backend of a device."""
        if device not in self.made:
            self.made[device] = backend_of(device, self.target, self.machine, self.backends)
        return self.made[device]

    def evaluate(self, kernel: Kernel, device: str) -> Evaluation:
        """Return what a kernel costs on a device, or why it is rejected."""
        return self.backend(device).evaluate(kernel)

    def costs_of(self, device: str) -> TargetCosts:
        """Return what fusion must know of a device."""
        return self.backend(device).costs

    def recorder(self, graph: Graph, plan: Plan) -> Recorder | None:
        """Return what lets a program replay its recorded launches; None if it cannot."""
        devices = dict.fromkeys(v.type.device for v in graph.values())
        found = (self.backend(device).recorder(graph, plan) for device in devices)
        return next((recorder for recorder in found if recorder is not None), None)

    def backend_of_region(self, region: Region) -> Backend:
        """Return the backend of the device on which a region runs."""
        return self.backend(device_of(region.ops))

    def by_backend(self, regions: Iterable[Region]) -> dict[Backend, list[Region]]:
        """Return the regions of each backend."""
        found: dict[Backend, list[Region]] = {}
        for r in regions:
            found.setdefault(self.backend_of_region(r), []).append(r)
        return found
