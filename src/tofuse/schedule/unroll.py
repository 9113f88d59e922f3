"""How many vectors of a loop are worked on at once."""

from __future__ import annotations

from collections.abc import Mapping

from tofuse.ir.kernel import Compute, Kernel, Reduce, Stmt, Store
from tofuse.ops.table import OPS, opdef

APART = 8.0  # dependent chains that keep a processor busy: two results a cycle, each four long
IN_FLIGHT = 200.0  # additions that a processor looks ahead: shorter bodies overlap by themselves
MOST_TEXT = 1536  # statements of a body with all its vectors


def vectors_at_once(kernel: Kernel, runs: Mapping[Stmt, frozenset[str]], vector: str) -> int:
    """1, 2 or 4: many where the body is short, or where its statements wait for one another."""
    body = [s for s in kernel.body if vector in runs[s]]
    usual = 4 if len(body) <= 16 else 2 if len(body) <= 48 else 1
    work, longest = _work(body)
    if not work:
        return usual
    wanted = APART * longest / work / max(1.0, IN_FLIGHT / work)
    fitting = [n for n in (2, 4) if n < 2 * wanted and n * len(body) <= MOST_TEXT]
    return max([usual, *fitting])


def _work(body: list[Stmt]) -> tuple[float, float]:
    """Additions of a body, and of its longest chain; what is reduced is there before."""
    work = longest = 0.0
    depth: dict[str, float] = {}
    for s in body:
        cost = opdef(s.op).cost if isinstance(s, Compute) and s.op in OPS else 1.0
        work += cost
        if not isinstance(s, Store | Reduce):
            depth[s.name] = cost + max((depth.get(u, 0.0) for u in s.uses), default=0.0)
            longest = max(longest, depth[s.name])
    return work, longest
