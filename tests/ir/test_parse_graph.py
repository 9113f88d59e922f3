"""The printed form of a graph parses, and prints the same again."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.graphs import graphs
from tests.support.rename import rename
from tofuse.errors import ParseError
from tofuse.ir.dims import symbol
from tofuse.ir.graph import (
    Attr,
    Graph,
    Loc,
    Op,
    Scalar,
    Value,
    show_attr,
    show_graph,
    show_op,
)
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.types import DType, TensorType
from tofuse.ops.check_graph import check_graph

EXAMPLE = """\
graph(x: f32[4,s0], w: f32[s0]{2}, e: f32[]{}) {
  v0 = mul(x, 0.5) : f32[4,s0]
  v1 = reshape(v0, shape=(4*s0,)) : f32[4*s0]
  v2 = sum(v0, dims=(1,), dtype=f32) : f32[4]
  v3, v4 = opaque(x, target='aten.topk.default', args='$0, 2', picks=(0, 1)) : f32[4,2], i64[4,2]  # at model.py:12
  v5 = full(value=-0.0, shape=(), dtype=f32) : f32[]@cuda:0
  v6 = maximum(x, -inf) : f32[4,s0]{1,4}  # at /a dir/b # c.py:3 (no_fuse gelu 3)
  v7 = mul(x, s0) : f32[4,s0]
  opaque(x, target='my.log', args="'a, $0'", effect=True)
  return v1, None, v2, x
}"""  # noqa: E501


def test_example():
    graph = parse_graph(EXAMPLE)
    assert show_graph(graph) == EXAMPLE
    check_graph(graph)
    assert graph.inputs[1].strides == (2,)
    assert graph.inputs[2].strides == ()
    assert graph.ops[3].loc == Loc("model.py", 12)
    loc = graph.ops[5].loc
    assert loc == Loc("/a dir/b # c.py", 3) and loc.fusion_hint == "no_fuse gelu 3"
    assert graph.outputs == (graph.ops[1].result, None, graph.ops[2].result, graph.inputs[0])


def test_graph_without_outputs():
    text = "graph() {\n  return\n}"
    assert show_graph(parse_graph(text)) == text


def test_blank_lines_and_comments_are_skipped():
    text = "# a comment\n\ngraph(x: f32[2]) {\n\n  # another\n  return x\n}\n"
    assert show_graph(parse_graph(text)) == "graph(x: f32[2]) {\n  return x\n}"


def test_rename_by_position():
    graph = rename(parse_graph("g(q: f32[2]) {\n  b = neg(q) : f32[2]\n  return b\n}"))
    assert show_graph(graph) == "g(a0: f32[2]) {\n  v0 = neg(a0) : f32[2]\n  return v0\n}"


def test_rename_avoids_names_of_inputs():
    graph = parse_graph("g(v0: f32[2]) {\n  b = neg(v0) : f32[2]\n  return b\n}")
    assert "v1 = neg(v0)" in show_graph(rename(graph, inputs=False))


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_every_graph_round_trips(graph: Graph):
    check_graph(graph)
    text = show_graph(graph)
    again = parse_graph(text)
    assert show_graph(again) == text
    check_graph(again)
    assert rename(graph).ops[-1].kind == graph.ops[-1].kind if graph.ops else True
    assert show_graph(rename(again)) == show_graph(rename(graph))


S0, S1 = symbol("s0"), symbol("s1")
ATTRS: st.SearchStrategy[Attr] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(),
        st.sampled_from(list(DType)),
        st.sampled_from([S0, 2 * S0 * S1 + 3, S0 - S1, -1 * S0 + -5, S0 * S0]),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
)


@given(ATTRS)
@settings(max_examples=300, deadline=None)
def test_every_attribute_round_trips(attr: Attr):
    x = Value(TensorType((2,), DType.F32), "x")
    op = Op("anything", (x,), (Value(x.type, "y"),), (("attr", attr),))
    text = show_graph(Graph((x,), (op,), op.results))
    (again,) = parse_graph(text).ops
    assert show_op(again) == show_op(op)
    assert same(again.attr("attr"), attr)


def same(a: Attr, b: Attr) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or Scalar(a).key == Scalar(b).key
    return type(a) is type(b) and a == b


def test_floats_integers_and_booleans_print_differently():
    assert show_attr((1.0, 1, True)) == "(1.0, 1, True)"


BAD = (
    ("", "a graph is a header"),
    ("graph(x: f32[2]) {\n  return x", "a graph is a header"),
    ("graph(x: f32[2]) {\n  v0 = neg(y) : f32[2]\n  return v0\n}", None),
    (
        "graph(x: f32[2]) {\n  v0 = neg('y') : f32[2]\n  return v0\n}",
        "line 2, column 12: 'y' is not a number",
    ),
    ("graph(x: f32[2]) {\n  v0 = neg(x)\n  return v0\n}", "line 2, column 14: ':' expected"),
    (
        "graph(x: f32[2]) {\n  v0 = neg(x) : q7[2]\n  return v0\n}",
        "line 2, column 17: q7 is not an element type",
    ),
    ("graph(x: f32[2]) {\n  v0 = neg(x) : f32[2] !\n  return v0\n}", "unexpected text"),
    (
        "graph(x: f32[2]) {\n  x = neg(x) : f32[2]\n  return x\n}",
        "line 2, column 16: x is defined twice",
    ),
    (
        "graph(x: f32[2]) {\n  v0 = neg(x, a=1-2) : f32[2]\n  return v0\n}",
        "line 2, column 17: a number or a size expected",
    ),
    ("graph(x: f32[2]) {\n  return y\n}", "line 2, column 10: y is not defined"),
    ("graph(x: f32[2]) {\n  v0 = neg(x) : f32[2]\n}", "line 2, column 3: 'return' expected"),
    (
        "graph(x: f32[2]) {\n  v0 = neg(x : f32[2]\n  return v0\n}",
        "line 2, column 14: ')' expected",
    ),
)


@pytest.mark.parametrize(("text", "message"), [case for case in BAD if case[1]])
def test_parse_errors_name_the_line(text: str, message: str):
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert message in str(caught.value)
