"""Kernels print, parse and verify; errors name the statement."""

from pathlib import Path

import pytest

from tests.support.cases import read_cases
from tofuse.errors import ParseError, VerifyError
from tofuse.ir.affine import AffineExpr, make_affine
from tofuse.ir.dims import symbol
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import Compute, Load, Store
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ops.check_kernel import check_kernel

EXAMPLE = """\
kernel k(x0: in f32, i1: in i64, y2: out bf16, y3: nontemporal f32, z4: out b1) over i0:4 i1x:2*s0 sizes s0 s1 {
  v0 = load x0[(2*s0)*i0 + i1x + 3+s0] : f32
  v1 = in_range [(-1)*i0] -3 s0 : b1
  v2 = in_range [i1x] 0 2*s0 if v1 : b1
  v3 = load x0[0] if v2 : f32
  v4 = load i1[i0] : i64
  v5 = gather wrap x0[i1x] by v4 * 2*s0 below 10 if v2 : f32
  v6 = gather x0[-1*s0] by v4 * 1 below s1 : f32
  v7 = add v5 -0.0 of f32 : f32
  v8 = maximum inf v7 of f32 : f32
  v9 = minimum v8 -inf of f32 : f32
  v10 = mul v9 nan of f32 : f32
  v11 = mul v10 2*s0*s1 of f32 : f32
  v12 = where True v11 1e-07 of f32 : f32
  v13 = iota [(3)*i0 + 2+-1*s0] : i64
  v14 = uniform i1[i0][i1x] of 2*s0 stream 7 : f32
  v15 = round_bf16 v14 of f32 : f32
  v16 = reduce sum<i1x> v12 : f32
  v17 = reduce argmax<i0,i1x> v10 at [(2*s0)*i0 + i1x] : i64
  v18 = convert v17 of i64 : f32
  v19 = reduce any<i0> v2 : b1
  store y2[i0] v16 : bf16
  store y2[i0 + 4] 1.5 : bf16
  store y3[0] v18 : f32
  store z4[i1x] v19 : b1
  store z4[0] False : b1
}"""  # noqa: E501


def test_example():
    kernel = parse_kernel(EXAMPLE)
    check_kernel(kernel)
    assert repr(kernel) == EXAMPLE
    s0 = symbol("s0")
    add, store = kernel.body[7], kernel.body[-1]
    load = kernel.body[0]
    assert isinstance(load, Load)
    assert load.index == make_affine([("i0", 2 * s0), ("i1x", 1)], s0 + 3)
    assert isinstance(add, Compute) and isinstance(store, Store)
    zero = add.args[1]
    assert isinstance(zero, Scalar) and zero.key == Scalar(-0.0).key != Scalar(0.0).key
    assert isinstance(store.value, Scalar) and store.value.key == Scalar(False).key


def test_no_axes_and_no_buffers():
    text = "kernel k() over 1 {\n}"
    kernel = parse_kernel(text)
    check_kernel(kernel)
    assert repr(kernel) == text and kernel.axes == ()


def test_comments_are_skipped():
    text = "# one\nkernel k(y: out f32) over i0:2 {\n\n  # two\n  store y[i0] 1.0 : f32\n}\n"
    assert repr(parse_kernel(text)).count("\n") == 2


def test_an_empty_affine_expression_prints_as_zero():
    assert repr(AffineExpr()) == "0"


@pytest.mark.parametrize("folder", ["backends/cpu/schedule/build_nest.txt"])
def test_kernels_of_text_fixtures_verify(folder: str):
    for case in read_cases(Path(__file__).parents[1] / folder):
        check_kernel(parse_kernel(case.before))


HEADER = "kernel k(x: in f32, h: in f16, s: in i64, y: out f32, b: out b1) over i0:4 i1:5 sizes s0"
LOAD = "v0 = load x[i0] : f32"


def body(*lines: str) -> str:
    return "\n".join([f"{HEADER} {{", *lines, "}"])


NOT_PARSED = (
    ("kernel k(x: in f32) over i0:4", "a kernel is a header"),
    ("kernel k over i0:4 {\n}", "line 1, column 10: '(' expected at 'over i0:4 {'"),
    ("kernel k() over i0 {\n}", "line 1, column 20: ':' expected at '{'"),
    ("kernel k(x in f32) over 1 {\n}", "line 1, column 12: ':' expected at 'in f32)"),
    (body("v0 = load x[i9] : f32"), "line 2, column 13: i9 is neither defined nor a size"),
    (body("v0 = load x[(2)*i9] : f32"), "line 2, column 17: i9 is not an axis"),
    (body("v0 = load x[i0] : q8"), "line 2, column 19: q8 is not an element type"),
    (body("v0 = add v1 1.0 of f32 : f32"), "v1 is neither defined nor a size"),
    (body("v0 = load x[i0] if v7 : f32"), "line 2, column 20: v7 is not defined"),
    (body("v0 = in_range [i0] 0 4 : f32"), "line 2, column 26: 'b1' expected at 'f32'"),
    (body(LOAD, "store y[i0] v0"), "line 3, column 15: ':' expected at the end of the line"),
    (body("v0 = load : f32"), "line 2, column 11: a name expected"),
    (body("v0 = load x[i0*2] : f32"), "i0 is neither defined nor a size"),
)


@pytest.mark.parametrize(("text", "message"), NOT_PARSED)
def test_parse_errors_name_the_line(text: str, message: str):
    with pytest.raises(ParseError) as caught:
        parse_kernel(text)
    assert message in str(caught.value)


INDEX = "v1 = iota [i0] : i64"
NOT_VERIFIED = (
    ((LOAD, LOAD), "v0 is defined twice"),
    (("i0 = load x[i0] : f32",), "i0 is defined twice"),
    (("v0 = load y[i0] : f32",), "y is out, not in"),
    (("v0 = load z[i0] : f32",), "there is no buffer z"),
    ((LOAD, "store x[i0] v0 : f32"), "x is in, not out or nontemporal"),
    (("v0 = load x[i0] : f64",), "x holds f32"),
    (("v0 = load h[i0] : f16",), "h holds f16"),
    ((LOAD, "store b[i0] v0 : b1"), "v0 is f32"),
    ((LOAD, "v1 = load x[i0] if v0 : f32"), "the guard v0 is not a boolean"),
    ((LOAD, "v1 = gather x[0] by v0 * 1 below 4 : f32"), "v0 is not an i64"),
    ((LOAD, "v1 = add v0 of f32 : f32"), "add takes 2 arguments, not 1"),
    ((LOAD, "v1 = sum v0 of f32 : f32"), "sum is not an elementwise op"),
    ((LOAD, "v1 = lt v0 0 of f32 : f32"), "lt of f32 is b1"),
    ((LOAD, "v1 = add v0 1 of f64 : f64"), "v0 is f32"),
    ((LOAD, "v1 = where v0 v0 v0 of f32 : f32"), "v0 is f32, not b1"),
    ((LOAD, "v1 = convert v0 of f16 : f32"), "no register holds f16"),
    ((LOAD, "v1 = reduce sum<i7> v0 : f32"), "i7 is not an axis"),
    ((LOAD, "v1 = reduce sum<i0,i0> v0 : f32"), "without repeats"),
    ((LOAD, "v1 = reduce add<i0> v0 : f32"), "add is not a reduction"),
    ((LOAD, "v1 = reduce sum<i0> v0 : f64"), "v0 is f32"),
    ((LOAD, "v1 = reduce argmax<i0> v0 : f32"), "need a position"),
    ((LOAD, "v1 = reduce sum<i0> v0 at [i0] : f32"), "other reductions have none"),
    ((LOAD, "v1 = reduce argmax<i0> v0 at [i0 + i1] : i64"), "axes that are not reduced"),
    ((LOAD, "scatter sum<i0> y[0] by v0 * 1 below 4 v0 : f32"), "v0 is not an i64"),
    ((INDEX, LOAD, "scatter any<i7> y[0] by v1 * 1 below 4 v0 : f32"), "not other axes"),
    ((INDEX, LOAD, "scatter sum<i0> y[i0] by v1 * 1 below 4 v0 : f32"), "not other axes"),
    ((INDEX, LOAD, "scatter mean<i0> y[0] by v1 * 1 below 4 v0 : f32"), "mean combines no two"),
    ((INDEX, LOAD, "scatter sum<i0> y[0] by v1 * 1 below 4 v0 : f32"), "no number is stored in y"),
    (("v0 = uniform x[0][i0] of 4 stream 0 : f32",), "x holds f32"),
)


@pytest.mark.parametrize(("lines", "message"), NOT_VERIFIED)
def test_errors_name_the_statement(lines: tuple[str, ...], message: str):
    with pytest.raises(VerifyError) as caught:
        check_kernel(parse_kernel(body(*lines)))
    assert message in str(caught.value)


BAD_HEADERS = (
    ("kernel k(x: in f32, x: out f32) over 1 {\n}", "two things named x"),
    ("kernel k(x: both f32) over 1 {\n}", "none of in, host, out, nontemporal"),
    ("kernel k(x: in opaque) over 1 {\n}", "no kernel handles"),
    ("kernel k() over i0:s7 {\n}", "s7 is not among the kernel's sizes"),
    ("kernel k() over i0:-1 {\n}", "has the extent -1"),
)


@pytest.mark.parametrize(("text", "message"), BAD_HEADERS)
def test_errors_in_the_header(text: str, message: str):
    with pytest.raises(VerifyError) as caught:
        check_kernel(parse_kernel(text))
    assert message in str(caught.value)
