"""Map the flat arguments and results of a call to the values of a graph."""

from __future__ import annotations

from tofuse.capture.lower.convert import CapturedGraph
from tofuse.ir.graph import Graph, Value
from tofuse.plan.signature import CallSignature


def call_signature(captured: CapturedGraph, graph: Graph, phase: str) -> CallSignature:
    """Return how a call's arguments and results map to the graph after all graph passes.

    The passes keep the order of the outputs.
    """
    constants = tuple(v for v, _ in captured.constants)
    new_value = dict(zip(captured.graph.outputs, graph.outputs, strict=True))
    results = tuple(new_value[r] if isinstance(r, Value) else r for r in captured.results)
    writes = tuple((t, new) for t, v in captured.writes if (new := new_value[v]) is not None)
    arguments = (*captured.arguments, *constants)
    # passes may merge two distinct outputs, such as a tensor and a view of all of it; the caller
    # still gets two tensors
    first: dict[Value, object] = {}
    visible = caller_outputs(captured, phase)
    pairs = enumerate(zip(captured.results, results, strict=True))
    tensors = [(k, old, v) for k, (old, v) in pairs if isinstance(v, Value) and old in visible]
    first_of: dict[Value, int] = {}
    merged = {
        k: first_of.setdefault(old, k)
        for k, old, v in tensors
        if first.setdefault(v, old) is not old
    }
    duplicates = tuple(sorted({**merged, **dict(captured.duplicate_results)}.items()))
    return CallSignature(arguments, results, captured.symbols, writes, duplicates)


def caller_outputs(captured: CapturedGraph, phase: str) -> set[Value]:
    """Return the results that the user gets and may write: no gradients and no saved tensors."""
    if phase == "backward":
        return set()
    count = None
    if phase == "forward" and captured.eager_memory is not None:
        count = captured.eager_memory.num_forward_outputs
    return {r for r in captured.results[:count] if isinstance(r, Value)}
