"""How a call's flat arguments and results map to a captured graph."""

from __future__ import annotations

from tofuse.capture.lower.convert import CapturedGraph
from tofuse.ir.graph import Graph, Value
from tofuse.plan.signature import CallSignature


def call_signature(captured: CapturedGraph, graph: Graph, phase: str) -> CallSignature:
    """How a call's arguments and results map to the graph after passes, outputs by position."""
    constants = tuple(v for v, _ in captured.constants)
    now = dict(zip(captured.graph.outputs, graph.outputs, strict=True))
    results = tuple(now[r] if isinstance(r, Value) else r for r in captured.results)
    writes = tuple((t, new) for t, v in captured.writes if (new := now[v]) is not None)
    arguments = (*captured.arguments, *constants)
    # what was found to be all of what it is a view of is a tensor of its own still
    first: dict[Value, object] = {}
    seen = caller_outputs(captured, phase)
    pairs = enumerate(zip(captured.results, results, strict=True))
    tensors = [(k, was, v) for k, (was, v) in pairs if isinstance(v, Value) and was in seen]
    distinct = {k for k, was, v in tensors if first.setdefault(v, was) is not was}
    again = tuple(sorted({*captured.duplicate_results, *distinct}))
    return CallSignature(arguments, results, captured.symbols, writes, again)


def caller_outputs(captured: CapturedGraph, phase: str) -> set[Value]:
    """The results that the caller gets, and may write: no gradients, and nothing that is saved."""
    if phase == "backward":
        return set()
    count = None
    if phase == "forward" and captured.eager_memory is not None:
        count = captured.eager_memory.num_forward_outputs
    return {r for r in captured.results[:count] if isinstance(r, Value)}
