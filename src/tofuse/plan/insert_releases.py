"""Plan steps -> plan steps: release every tensor after its last use."""

from __future__ import annotations

from collections.abc import Sequence

from tofuse.ir.plan import Release, Step
from tofuse.ir.plan.verify import defines, reads


def insert_releases(
    steps: Sequence[Step], results: Sequence[str], parameters: Sequence[str]
) -> tuple[Step, ...]:
    """Return the steps with a release of each tensor after its last use; results stay alive."""
    last: dict[str, int] = dict.fromkeys(parameters, -1)
    for k, step in enumerate(steps):
        for name in (*reads(step), *defines(step)):
            last[name] = k
    returned = set(results)
    dying: dict[int, list[str]] = {}
    for name, k in last.items():
        if name not in returned:
            dying.setdefault(k, []).append(name)
    released: list[Step] = [Release(tuple(dying[-1]))] if -1 in dying else []
    for k, step in enumerate(steps):
        released.append(step)
        if k in dying and k < len(steps) - 1:
            released.append(Release(tuple(dying[k])))
    return tuple(released)
