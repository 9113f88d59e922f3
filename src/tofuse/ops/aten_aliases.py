"""Views among the results of PyTorch's operators."""

from __future__ import annotations

from functools import cache

from tofuse.ir.plan import Call, Step, View
from tofuse.ir.plan.verify import reads
from tofuse.ops.reference import resolve_operator


@cache
def returns_view(target: str) -> bool:
    """Whether an operator has one result, a view of its first argument."""
    if not target.startswith("aten."):
        return False
    schema = getattr(resolve_operator(target), "_schema", None)
    returned = [] if schema is None else [r.alias_info for r in schema.returns]
    return len(returned) == 1 and returned[0] is not None and not returned[0].is_write


def alias_base(step: Step) -> str | None:
    """Return the tensor whose memory a step's results alias; None if they own their memory."""
    if isinstance(step, View):
        return step.source
    if isinstance(step, Call) and returns_view(step.target):
        return reads(step)[0]
    return None
