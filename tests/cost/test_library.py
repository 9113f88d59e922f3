"""The arithmetic of products, whoever computes them."""

import pytest

from tofuse.cost.library import library_flops, op_us
from tofuse.cost.machine import Machine
from tofuse.ir.parse_graph import parse_graph

CALL = "opaque(x, w, target='aten.{0}.default', args='$0, $1', shape={1}, dtype=f32)"
PRODUCTS = [
    ("f32[7,11]", "f32[11,13]", "(7, 13)", "f32[7,13]", "mm", 2 * 7 * 13 * 11),
    ("f32[3,7,11]", "f32[3,11,13]", "(3, 7, 13)", "f32[3,7,13]", "bmm", 2 * 3 * 7 * 13 * 11),
]


@pytest.mark.parametrize(("x", "w", "shape", "result", "name", "flops"), PRODUCTS)
def test_a_contraction_costs_as_much_as_the_call_that_it_replaces(x, w, shape, result, name, flops):
    times = []
    for text in (CALL.format(name, shape), "contract(x, w, dtype=f32)"):
        graph = parse_graph(f"graph(x: {x}, w: {w}) {{\n  v = {text} : {result}\n  return v\n}}")
        assert library_flops(graph.ops[0]) == flops
        times.append(op_us(graph.ops[0], Machine()))
    assert times[0] == times[1]
