"""Passes on random graphs: valid and idempotent results with the same bits."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.graphs import graphs
from tests.support.numbers import (
    assert_same_bits,
    plain_inputs,
    sizes_of,
    special_inputs,
)
from tofuse.driver.pipeline import run_graph_passes
from tofuse.ir.graph import Attr, Graph, Op, Value, substitute_operands
from tofuse.ir.types import TensorType
from tofuse.ops.check_graph import check_graph
from tofuse.ops.reference import run_graph
from tofuse.passes.batch.batch_branches import batch_branches
from tofuse.passes.canonicalize_views import canonicalize_views
from tofuse.passes.cse import cse
from tofuse.passes.dead_code import dead_code
from tofuse.passes.fold_constants import fold_constants
from tofuse.passes.simplify import simplify

Pass = Callable[[Graph], Graph]
EXACT_PASSES: tuple[Pass, ...] = (
    dead_code,
    fold_constants,
    simplify,
    canonicalize_views,
    cse,
    run_graph_passes,
)


@pytest.mark.parametrize("pass_", EXACT_PASSES, ids=lambda p: p.__name__)
@given(graph=graphs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_results_have_same_bits(pass_: Pass, graph: Graph):
    after = pass_(graph)
    check_graph(after)
    assert pass_(after) is after
    assert [v and v.type for v in after.outputs] == [v and v.type for v in graph.outputs]
    assert [v and v.layout for v in after.outputs] == [v and v.layout for v in graph.outputs]
    sizes = sizes_of(graph) | sizes_of(after)
    inputs = special_inputs(graph, torch.Generator().manual_seed(len(graph.ops)))
    old, new = run_graph(graph, inputs, sizes), run_graph(after, inputs, sizes)
    for a, b in zip(graph.outputs, after.outputs, strict=True):
        if a is not None and b is not None:
            assert_same_bits(old[a], new[b])


@given(graphs(strides=False), st.integers(2, 3), st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_batching_of_random_branches(graph: Graph, n: int, data: st.DataObject):
    branched = make_branches(graph, n, data)
    check_graph(branched)
    for pass_ in (batch_branches, run_graph_passes):
        after = pass_(branched)
        check_graph(after)
        assert pass_(after) is after
        inputs = plain_inputs(branched, torch.Generator().manual_seed(n))
        sizes = sizes_of(branched)
        old, new = run_graph(branched, inputs, sizes), run_graph(after, inputs, sizes)
        for a, b in zip(branched.outputs, after.outputs, strict=True):
            if a is not None and b is not None:
                torch.testing.assert_close(new[b], old[a], equal_nan=True)


def make_branches(graph: Graph, n: int, data: st.DataObject) -> Graph:
    """Return n copies of a graph on slices of larger inputs, with their last results concatenated.

    Inputs that cannot be sliced are shared, as are the ops that depend on no sliced input.
    """
    inputs: list[Value] = []
    sliced: dict[Value, tuple[Value, int, int]] = {}
    for v in graph.inputs:
        dims = [d for d, extent in enumerate(v.shape) if isinstance(extent, int)]
        if not dims or data.draw(st.booleans()):
            inputs.append(v)
            continue
        dim, extra = data.draw(st.sampled_from(dims)), data.draw(st.integers(0, 1))
        extent = v.shape[dim]
        assert isinstance(extent, int)
        sliced_shape = (*v.shape[:dim], n * extent + 2 * extra, *v.shape[dim + 1 :])
        inputs.append(Value(TensorType(sliced_shape, v.dtype), v.name))
        sliced[v] = (inputs[-1], dim, extra)
    ops: list[Op] = []
    new = [dict[Value, Value]() for _ in range(n)]
    for v, slice_ in sliced.items():
        for k in range(n):
            ops.append(make_slice(v, k, *slice_))
            new[k][v] = ops[-1].result
    for op in graph.ops:
        if not any(v in new[0] for v in op.inputs):
            ops.append(op)
            continue
        for k in range(n):
            results = tuple(replace(r, name=f"{r.name}_{k}") for r in op.results)
            ops.append(
                replace(op, operands=substitute_operands(op.operands, new[k]), results=results)
            )
            new[k].update(zip(op.results, results, strict=True))
    last = graph.ops[-1].result if graph.ops else graph.inputs[0]
    outputs = [new[0].get(v, v) for v in graph.outputs[:1] if v is not None and v not in sliced]
    if last in new[0] and last.shape:
        dim = data.draw(st.integers(0, len(last.shape) - 1))
        shape = (*last.shape[:dim], n * last.shape[dim], *last.shape[dim + 1 :])
        concat = Value(TensorType(shape, last.dtype), "concat")
        ops.append(Op("cat", tuple(m[last] for m in new), (concat,), (("dim", dim),)))
        outputs.append(concat)
    return Graph(tuple(inputs), tuple(ops), tuple(outputs))


def make_slice(v: Value, k: int, source: Value, dim: int, extra: int) -> Op:
    extent = v.shape[dim]
    assert isinstance(extent, int)
    start = tuple(extra + k * extent if d == dim else 0 for d in range(len(v.shape)))
    attrs: tuple[tuple[str, Attr], ...] = (
        ("start", start),
        ("step", (1,) * len(start)),
        ("shape", v.shape),
        ("dtype", v.dtype),
    )
    return Op("slice", (source,), (replace(v, name=f"{v.name}_{k}", strides=None),), attrs)
