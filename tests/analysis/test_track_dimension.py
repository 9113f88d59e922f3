"""Track dimensions of values through views, broadcasts, reductions and elementwise ops."""

import pytest

from tofuse.analysis.track_dimension import Dimension, dimension_of_result
from tofuse.ir.parse_graph import parse_graph

OPS = {
    "exp": ("exp(x) : f32[2,6,5]", (0, 1, 2)),
    "sum": ("sum(x, dims=(1,), dtype=f32) : f32[2,5]", (0, None, 1)),
    "permute": ("permute(x, dims=(2, 0, 1)) : f32[5,2,6]", (1, 2, 0)),
    "broadcast": ("broadcast(x, shape=(2, 3, 6, 5), dims=(0, 2, 3)) : f32[2,3,6,5]", (0, 2, 3)),
    "merging reshape": ("reshape(x, shape=(12, 5)) : f32[12,5]", (None, None, 1)),
    "splitting reshape": ("reshape(x, shape=(2, 2, 3, 5)) : f32[2,2,3,5]", (0, None, 3)),
    "reshape to one row": ("reshape(x, shape=(1, 2, 6, 5)) : f32[1,2,6,5]", (1, 2, 3)),
    "slice": ("slice(x, offset=0, shape=(2, 6, 3), strides=(30, 5, 1)) : f32[2,6,3]", (None,) * 3),
}


@pytest.mark.parametrize("name", OPS)
def test_each_dimension(name):
    text, expected = OPS[name]
    graph = parse_graph(f"graph(x: f32[2,6,5]) {{\n  v0 = {text}\n  return v0\n}}")
    (op,) = graph.ops
    found = [dimension_of_result(op, Dimension(op.inputs[0], d)) for d in range(3)]
    assert [f and f.number for f in found] == list(expected)
    assert all(f is None or f.value is op.result for f in found)
