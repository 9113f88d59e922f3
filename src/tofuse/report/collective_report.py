"""Collectives in a plan: what each sends, and what it overlaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.analysis.alias import WAIT, is_collective, is_communication
from tofuse.cost.memory_traffic import value_bytes
from tofuse.ir.graph import Graph, Loc, Op
from tofuse.ir.plan import Call, Plan, variable
from tofuse.ir.verify_plan import reads
from tofuse.report.region_report import RegionReport


@dataclass(frozen=True)
class Collective:
    """A collective of torch.distributed in a graph.

    `name` is the region's. `group` is the process group as torch names it. The bytes are those of
    this rank. `start` and `wait` are steps of the plan; without a wait in this graph, `wait` is
    None. `overlapped` runs between the two.
    """

    name: str
    operator: str
    group: str
    operand_bytes: int
    result_bytes: int
    start: int
    wait: int | None
    overlapped: tuple[RegionReport, ...]
    loc: Loc | None

    @property
    def overlapped_us(self) -> float:
        """The microseconds of what it overlaps: measured, or else predicted."""
        return sum(r.measured_us or r.predicted_us for r in self.overlapped)


def find_collectives(
    graph: Graph, plan: Plan, region_of_step: Mapping[int, RegionReport]
) -> tuple[Collective, ...]:
    """Return the collectives of a graph, in the order in which its plan starts them."""
    ops = {variable(v): op for op in graph.ops for v in op.results}
    found = []
    for k, step in enumerate(plan.steps):
        op = ops.get(step.results[0]) if isinstance(step, Call) and step.results else None
        if op is not None and is_collective(op) and k in region_of_step:
            found.append(_collective(op, k, plan, region_of_step))
    return tuple(found)


def _collective(
    op: Op, start: int, plan: Plan, region_of_step: Mapping[int, RegionReport]
) -> Collective:
    results = {variable(v) for v in op.results}
    waits = [
        k
        for k, step in enumerate(plan.steps)
        if isinstance(step, Call) and step.target.startswith(WAIT) and results & {*reads(step)}
    ]
    wait = waits[0] if waits else None
    between = range(start + 1, len(plan.steps) if wait is None else wait)
    regions = dict.fromkeys(region_of_step[k] for k in between if k in region_of_step)
    step = plan.steps[start]
    assert isinstance(step, Call)
    texts = [a for a in step.arguments.leaves if isinstance(a, str)]
    return Collective(
        name=region_of_step[start].name,
        operator=step.target.split(".")[1],
        group=texts[-1] if texts else "",  # the last argument of all of them
        operand_bytes=sum(map(value_bytes, dict.fromkeys(op.inputs))),
        result_bytes=sum(map(value_bytes, op.results)),
        start=start,
        wait=wait,
        overlapped=tuple(r for r in regions if not is_communication(r.region.ops[0])),
        loc=op.loc,
    )
