"""Evaluate candidate regions: lower each to a kernel and consult the cost oracles, once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from tofuse.fusion.host_scalars import mark_host_scalars
from tofuse.fusion.lower.axes import LoweringError
from tofuse.fusion.lower.coalesce import coalesce
from tofuse.fusion.lower.lower_region import lower_region
from tofuse.fusion.partition.elementwise_fusion import MAX_BUFFERS
from tofuse.fusion.partition.graph_index import GraphIndex
from tofuse.fusion.partition.profitability import CostOracles, Evaluation
from tofuse.fusion.partition.region_hash import structural_key
from tofuse.ir.graph import Op, device_of
from tofuse.ir.region import Region

TOO_MANY_BUFFERS = f"a kernel reads and writes at most {MAX_BUFFERS} buffers"
EvaluationCache = dict[Hashable, Evaluation]  # by region, and by the structure of regions


@dataclass(frozen=True, eq=False)
class RegionEvaluator:
    """Evaluates regions of one graph; `rounded` names the values that kernels round."""

    index: GraphIndex
    oracles: CostOracles
    rounded: frozenset[str]
    cache: EvaluationCache

    def evaluate(self, ops: Sequence[Op]) -> Evaluation:
        """Return why these ops cannot be one kernel, or the cost of that kernel."""
        storage = self.index.storage
        region = self.index.make_region(ops, "candidate")
        memrefs = tuple(map(storage.get, region.inputs))
        buffers_read = {m.root for m in memrefs if m is not None}
        if len(buffers_read) + len(region.outputs) > MAX_BUFFERS:
            return Evaluation(TOO_MANY_BUFFERS, None)
        key = region.ops, region.outputs, memrefs, self.rounded
        if key not in self.cache:
            structure = structural_key(region, storage, self.rounded)
            if structure not in self.cache:
                self.cache[structure] = self._lower_and_evaluate(region, device_of(ops))
            self.cache[key] = self.cache[structure]
        return self.cache[key]

    def _lower_and_evaluate(self, region: Region, device: str) -> Evaluation:
        try:
            lowered = lower_region(region, self.index.storage, rounded=self.rounded)
            kernel = mark_host_scalars(coalesce(lowered.kernel), lowered.arguments, device)
        except LoweringError as e:
            return Evaluation(str(e), None)
        if len(kernel.buffers) > MAX_BUFFERS:
            return Evaluation(TOO_MANY_BUFFERS, None)
        return self.oracles.evaluate(kernel, device)
