"""Assign the measured times of a plan's steps to the regions of its report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tofuse.ir.plan import Call, Launch, Plan
from tofuse.ir.plan.parse import parse_plan
from tofuse.report.model import GraphReport, TimeSpan
from tofuse.report.program_view import plan_name


def add_measured_times(
    report: GraphReport, times: Mapping[int, float], last: Mapping[int, tuple[int, int]]
) -> GraphReport:
    """Return the report with each region's `measured_us` and the spans of the last run.

    `times` holds the median microseconds of each plan step, `last` its begin and end in the last
    run, both by the step's number.
    """
    if not times:
        return report
    region_of_step = step_regions(parse_plan(report.plan), report)
    total: dict[str, float] = {}
    for step, us in times.items():
        if step in region_of_step:
            region = region_of_step[step]
            total[region] = total.get(region, 0.0) + us
    regions = tuple(replace(r, measured_us=total.get(r.name)) for r in report.regions)
    spans = [TimeSpan(region_of_step.get(k, f"step {k}"), *last[k]) for k in sorted(last)]
    return replace(report, regions=regions, last_run=tuple(spans))


def step_regions(plan: Plan, report: GraphReport) -> dict[int, str]:
    """Return the region that each launch and library call of a plan runs, by step number."""
    by_result = {plan_name(v): r.name for r in report.regions for v in r.values}
    without_results = [r.name for r in report.regions if not r.values]
    region_names = {r.name for r in report.regions}
    region_of_step: dict[int, str] = {}
    for k, step in enumerate(plan.steps):
        if isinstance(step, Launch) and step.name in region_names:
            region_of_step[k] = step.name
        elif isinstance(step, Call):
            region = next((by_result[n] for n in step.results if n in by_result), None)
            if region is None:
                buffers = reversed(_KEYWORD.findall(step.args))  # out= arguments
                candidates = (by_result[n] for n in buffers if n in by_result)
                region = next((r for r in candidates if r not in region_of_step.values()), None)
            if region is None and not step.results and without_results:
                region = without_results.pop(0)
            if region is not None:
                region_of_step[k] = region
    return region_of_step


_KEYWORD = re.compile(r"=(\w+)")
