"""A graph report with the times of a measured run, put to the regions that they belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tofuse.ir.plan import Call, Launch, Plan
from tofuse.ir.plan.parse import parse_plan
from tofuse.report.model import GraphReport, Span
from tofuse.report.program_view import variable


def measured(
    report: GraphReport, times: Mapping[int, float], last: Mapping[int, tuple[int, int]]
) -> GraphReport:
    """The report with `measured_us` of its regions, from the median microseconds of each step
    of the plan, and with the spans of the last run."""
    if not times:
        return report
    names = step_regions(parse_plan(report.plan), report)
    total: dict[str, float] = {}
    for step, us in times.items():
        if step in names:
            total[names[step]] = total.get(names[step], 0.0) + us
    regions = tuple(replace(r, measured_us=total.get(r.name)) for r in report.regions)
    spans = [Span(names.get(k, f"step {k}"), *last[k]) for k in sorted(last)]
    return replace(report, regions=regions, run=tuple(spans))


def step_regions(plan: Plan, report: GraphReport) -> dict[int, str]:
    """The region that each launch and each call of a plan runs, by the step's number."""
    by_result = {variable(v): r.name for r in report.regions for v in r.values}
    silent = [r.name for r in report.regions if not r.values]  # ops without results, in order
    known = {r.name for r in report.regions}
    found: dict[int, str] = {}
    for k, step in enumerate(plan.steps):
        if isinstance(step, Launch) and step.name in known:
            found[k] = step.name
        elif isinstance(step, Call):
            owner = next((by_result[n] for n in step.results if n in by_result), None)
            if owner is None:
                written = reversed(_KEYWORD.findall(step.args))  # where a call is told to write
                owners = (by_result[n] for n in written if n in by_result)
                owner = next((r for r in owners if r not in found.values()), None)
            if owner is None and not step.results and silent:
                owner = silent.pop(0)
            if owner is not None:
                found[k] = owner
    return found


_KEYWORD = re.compile(r"=(\w+)")
