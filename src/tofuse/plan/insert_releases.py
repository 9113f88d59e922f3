"""Plan -> Plan: release every tensor after its last use."""

from __future__ import annotations

from dataclasses import replace

from tofuse.analysis.plan_liveness import last_uses
from tofuse.ir.plan import Plan, Release, Step


def insert_releases(plan: Plan) -> Plan:
    """Return the plan with a release of each tensor after its last use; results stay alive."""
    dying: dict[int, list[str]] = {}
    for name, k in last_uses(plan).items():
        dying.setdefault(k, []).append(name)
    released: list[Step] = [Release(tuple(dying[-1]))] if -1 in dying else []
    for k, step in enumerate(plan.steps):
        released.append(step)
        if k in dying and k < len(plan.steps) - 1:
            released.append(Release(tuple(dying[k])))
    return replace(plan, steps=tuple(released))
