"""The verifier rejects invalid graphs, and names the op and its source line."""

from dataclasses import replace

import pytest

from tofuse.errors import VerifyError
from tofuse.ir.graph import Graph, Op, Value
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.types import DType, TensorType
from tofuse.ops.check_graph import check_graph, verify_graph

X = Value(TensorType((2, 3), DType.F32), "x")
Y = Value(TensorType((2, 3), DType.F32), "y")


def body(line: str, head: str = "x: f32[2,3], i: i64[2,3]") -> Graph:
    return parse_graph(f"graph({head}) {{\n  {line}  # at model.py:7\n  return v0\n}}")


BAD_OPS = (
    ("v0 = nonsense(x) : f32[2,3]", "there is no op 'nonsense'"),
    ("v0 = add(x) : f32[2,3]", "takes 2 operands, not 1"),
    ("v0 = add(x, i) : f32[2,3]", "dtypes differ"),
    ("v0 = neg(2.0) : f32[2,3]", "needs a tensor operand"),
    ("v0 = neg(x) : f32[3,2]", "the result is f32[3,2] but should be f32[2,3]"),
    ("v0 = neg(x) : f64[2,3]", "should be f32[2,3]"),
    ("v0 = neg(x) : f32[2,3]@cuda:0", "should be f32[2,3]"),
    ("v0 = lt(x, x) : f32[2,3]", "should be b1[2,3]"),
    ("v0 = reshape(x, shape=(7,)) : f32[7]", "differ in size"),
    ("v0 = reshape(x) : f32[6]", "do not fit"),
    ("v0 = permute(x, dims=(0, 0)) : f32[2,2]", "not a permutation"),
    ("v0 = broadcast(x, shape=(4, 2, 3), dims=(0, 1)) : f32[4,2,3]", "does not fit"),
    ("v0 = sum(x, dims=(2,), dtype=f32) : f32[2,3]", "do not fit rank"),
    ("v0 = slice(x, start=(0, 0), step=(1, 1), shape=(3, 3)) : f32[3,3]", "elements 0 to 2 of 2"),
    ("v0 = slice(x, start=(0, 0), step=(0, 1), shape=(2, 3)) : f32[2,3]", "a step of 0"),
    ("v0 = slice(x, start=(0,), step=(1,), shape=(2,)) : f32[2]", "do not fit the ranks"),
    ("v0 = opaque(x, args='$0') : f32[2,3]", "needs the text attribute 'target'"),
    ("v0, v1 = opaque(x, target='t', args='') : f32[2], f32[2]", "need the attribute 'picks'"),
    ("v0 = opaque(x, target='t', args='', picks=(0, 1)) : f32[2]", "do not fit 1 results"),
    (
        "v0 = opaque(x, target='t', args='', dtype=f64) : f32[2]",
        "does not match the attributes",
    ),
    ("v0, v1 = neg(x) : f32[2,3], f32[2,3]", "has one result, not 2"),
    ("v0 = sum(x, dims=(0,), dims=(1,), dtype=f32) : f32[3]", "an attribute is repeated"),
)


@pytest.mark.parametrize(("line", "message"), BAD_OPS)
def test_errors_name_the_op_and_its_line(line: str, message: str):
    with pytest.raises(VerifyError) as caught:
        check_graph(body(line))
    assert message in str(caught.value)
    assert "v0" in str(caught.value)
    assert "model.py:7" in str(caught.value)


def neg(x: Value, result: Value) -> Op:
    return Op("neg", (x,), (result,))


BAD_GRAPHS = (
    (Graph((X,), (neg(Y, replace(Y, name="z")),), (X,)), "operand y is not defined before"),
    (Graph((X,), (neg(X, X),), (X,)), "x is defined twice"),
    (Graph((X, replace(X)), (), (X,)), "two values are named x"),
    (Graph((X,), (), (Y,)), "is not defined in the graph"),
    (Graph((replace(X, name="f32"),), (), ()), "'f32' cannot name a value"),
    (Graph((replace(X, name="a b"),), (), ()), "'a b' cannot name a value"),
    (Graph((replace(X, strides=(1,)),), (), ()), "has 1 strides"),
)


@pytest.mark.parametrize(("graph", "message"), BAD_GRAPHS)
def test_an_invalid_graph_is_rejected(graph: Graph, message: str):
    with pytest.raises(VerifyError) as caught:
        verify_graph(graph)
    assert message in str(caught.value)


def test_a_value_and_a_size_cannot_share_a_name():
    with pytest.raises(VerifyError, match="both a value and a size"):
        verify_graph(parse_graph("graph(s0: f32[s0]) {\n  return s0\n}"))


def test_the_device_of_a_source_is_not_inferred():
    check_graph(body("v0 = full(value=1.0, shape=(2,), dtype=f32) : f32[2]@cuda:0"))


def test_an_op_without_results_needs_an_effect():
    text = "graph(x: f32[2]) {{\n  opaque(x, target='t', args='$0'{})\n  return x\n}}"
    check_graph(parse_graph(text.format(", effect=True")))
    with pytest.raises(VerifyError, match="without a result needs effect=True"):
        check_graph(parse_graph(text.format("")))
