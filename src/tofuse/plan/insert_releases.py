"""Plan -> Plan: release every tensor after its last use."""

from __future__ import annotations

from dataclasses import replace

from tofuse.ir.plan import Plan, Release, Step
from tofuse.ir.plan.verify import defines, reads


def insert_releases(plan: Plan) -> Plan:
    """Return the plan with a release of each tensor after its last use; results stay alive."""
    last: dict[str, int] = dict.fromkeys((p.name for p in plan.parameters), -1)
    for k, step in enumerate(plan.steps):
        for name in (*reads(step), *defines(step)):
            last[name] = k
    returned = set(plan.results)
    dying: dict[int, list[str]] = {}
    for name, k in last.items():
        if name not in returned:
            dying.setdefault(k, []).append(name)
    released: list[Step] = [Release(tuple(dying[-1]))] if -1 in dying else []
    for k, step in enumerate(plan.steps):
        released.append(step)
        if k in dying and k < len(plan.steps) - 1:
            released.append(Release(tuple(dying[k])))
    return replace(plan, steps=tuple(released))
