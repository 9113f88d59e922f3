"""Results of PyTorch's operators that look at the memory of an operand."""

from __future__ import annotations

from functools import cache

from tofuse.ir.plan import Call, Step, View
from tofuse.ir.plan.verify import reads
from tofuse.ops.reference import call_target


@cache
def is_view(target: str) -> bool:
    """Whether an operator's only result looks at the memory of its first argument."""
    if not target.startswith("aten."):
        return False
    schema = getattr(call_target(target), "_schema", None)
    returned = [] if schema is None else [r.alias_info for r in schema.returns]
    return len(returned) == 1 and returned[0] is not None and not returned[0].is_write


def lender(step: Step) -> str | None:
    """Whose memory a step's results lie in; None where they have their own."""
    if isinstance(step, View):
        return step.source
    if isinstance(step, Call) and is_view(step.target):
        return reads(step)[0]
    return None
