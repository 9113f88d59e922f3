"""Evaluate candidate regions: why a region cannot be one kernel, or what that kernel costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tofuse.cost.kernel_cost import Evaluation
from tofuse.cost.target_costs import CostsOf
from tofuse.cost.thresholds import MAX_KERNEL_BUFFERS
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.lowering_memo import LoweringMemo
from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Op, device_of
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Region
from tofuse.ir.rules import Rule

TOO_MANY_BUFFERS = Rule.TOO_MANY_BUFFERS(MAX_KERNEL_BUFFERS)
EvaluateKernel = Callable[[Kernel, str], Evaluation]  # on a device


@dataclass(frozen=True, eq=False)
class RegionEvaluator:
    """Evaluates the regions of one compilation, those of equal structure once.

    With `ignore_cost`, the cost of a kernel is never known, so that no merge is too costly.
    """

    evaluate_kernel: EvaluateKernel
    costs_of: CostsOf
    lowerings: LoweringMemo
    ignore_cost: bool = False
    evaluations: dict[Kernel, Evaluation] = field(default_factory=dict)

    def evaluate(self, ops: Sequence[Op], index: GraphIndex, rounded: frozenset[str]) -> Evaluation:
        """Return why ops cannot be one kernel, or the cost of that kernel.

        The kernel rounds the values named in `rounded`.
        """
        storage, region = index.aliases.memrefs, index.make_region(ops, "candidate")
        buffers_read = {storage[v].root for v in region.inputs if v in storage}
        if len(buffers_read) + len(region.outputs) > MAX_KERNEL_BUFFERS:
            return Evaluation(TOO_MANY_BUFFERS)
        try:
            kernel = self.lowerings.kernel(region, storage, rounded)
        except LoweringError as e:
            return Evaluation(e.reason)
        if kernel not in self.evaluations:
            self.evaluations[kernel] = self.evaluate_kernel(kernel, device_of(ops))
        evaluation = self.evaluations[kernel]
        return evaluation._replace(cost=None) if self.ignore_cost else evaluation

    def region_us(self, region: Region, part: Partition) -> float:
        """Return the predicted time of ops of a partition; infinite if they have no kernel."""
        try:
            kernel = self.lowerings.kernel(region, part.aliases.memrefs, part.rounded)
        except LoweringError:
            return math.inf
        cost = self.evaluate_kernel(kernel, device_of(region.ops)).cost
        return math.inf if cost is None else cost.us
