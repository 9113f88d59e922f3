"""Evaluate candidate regions: why a region cannot be one kernel, or what that kernel costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tofuse.cost.nest_cost import Cost
from tofuse.cost.thresholds import MAX_BUFFERS
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.lowering_memo import LoweringMemo
from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.ir.graph import Op, device_of
from tofuse.ir.kernel import Kernel
from tofuse.region import Reason, Rule

TOO_MANY_BUFFERS = Rule.TOO_MANY_BUFFERS(MAX_BUFFERS)
Reject = Callable[[Kernel], "Reason | None"]  # the rejection reason; None if accepted
EstimateCost = Callable[[Kernel], "Cost | None"]  # None if the kernel has no schedule
CostOnGpu = Callable[[Kernel, str], "Cost | Reason"]  # on a device; the reason for no launches


class Evaluation(NamedTuple):
    """Why a kernel is rejected, or else its cost, if the cost is known."""

    rejection: Reason | None
    cost: Cost | None


@dataclass(frozen=True, eq=False)
class RegionEvaluator:
    """Evaluates the regions of one compilation, those of equal structure once.

    `cost_on_gpu` of None accepts every kernel. `estimate_cost` is for the CPU. With `ignore_cost`,
    the cost of a kernel is never known, so that no merge is too costly.
    """

    reject_on_cpu: Reject
    cost_on_gpu: CostOnGpu | None
    estimate_cost: EstimateCost | None
    lowerings: LoweringMemo = field(default_factory=LoweringMemo)
    ignore_cost: bool = False
    evaluations: dict[Kernel, Evaluation] = field(default_factory=dict)

    def evaluate(self, ops: Sequence[Op], index: GraphIndex, rounded: frozenset[str]) -> Evaluation:
        """Return why ops cannot be one kernel, or the cost of that kernel.

        The kernel rounds the values named in `rounded`.
        """
        storage, region = index.aliases.memrefs, index.make_region(ops, "candidate")
        buffers_read = {storage[v].root for v in region.inputs if v in storage}
        if len(buffers_read) + len(region.outputs) > MAX_BUFFERS:
            return Evaluation(TOO_MANY_BUFFERS, None)
        try:
            kernel = self.lowerings.kernel(region, storage, rounded)
        except LoweringError as e:
            return Evaluation(e.reason, None)
        if kernel not in self.evaluations:
            self.evaluations[kernel] = self._evaluate_kernel(kernel, device_of(ops))
        evaluation = self.evaluations[kernel]
        return evaluation._replace(cost=None) if self.ignore_cost else evaluation

    def _evaluate_kernel(self, kernel: Kernel, device: str) -> Evaluation:
        """Return why a kernel is rejected, or its cost, if it is known."""
        if device != "cpu":
            found = None if self.cost_on_gpu is None else self.cost_on_gpu(kernel, device)
            return Evaluation(found, None) if isinstance(found, Reason) else Evaluation(None, found)
        rejection = self.reject_on_cpu(kernel)
        if rejection is not None or self.estimate_cost is None:
            return Evaluation(rejection, None)
        return Evaluation(None, self.estimate_cost(kernel))
