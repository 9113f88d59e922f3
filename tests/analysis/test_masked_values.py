"""Which iterations masks exclude: the forms that users write, and what needs all iterations."""

import math

import pytest

from tofuse.analysis.masked_values import EXP_UNDERFLOW, find_masks
from tofuse.ir.parse_kernel import parse_kernel

SOFTMAX = """
kernel k(x: in f32, c: in b1, w: in f32, y: out f32) over i:8 j:64 {{
  v0 = load x[(64)*i + j] : f32
  v1 = load c[(64)*i + j] : b1
  v2 = {masked}
  v3 = reduce amax<j> v2 : f32
  v4 = sub v2 v3 of f32 : f32
  v5 = exp v4 of f32 : f32
  v6 = reduce sum<j> v5 : f32
  v7 = div v5 v6 of f32 : f32
  v8 = load w[j] : f32
  v9 = mul v7 v8 of f32 : f32
  v10 = reduce {summed} v9 : f32
  store y[{where}] v10 : f32
}}
"""
PLAIN = """
kernel k(x: in f32, c: in b1, y: out f32) over i:8 j:64 {{
  v0 = load x[(64)*i + j] : f32
  v1 = load c[(64)*i + j] : b1
  {lines}
  v9 = reduce sum<j> v8 : f32
  store y[i] v9 : f32
}}
"""


def masks(text):
    return find_masks(parse_kernel(text), "j")


def softmax(masked, summed="sum<j>", where="i"):
    return masks(SOFTMAX.format(masked=masked, summed=summed, where=where))


@pytest.mark.parametrize(
    ("masked", "masked_if", "least"),
    [
        ("where v1 -inf v0 of f32 : f32", True, ()),
        ("where v1 v0 -inf of f32 : f32", False, ()),
        ("where v1 -1000000000.0 v0 of f32 : f32", True, (("v3", EXP_UNDERFLOW - 1e9),)),
        ("where v1 v0 -10000.0 of f32 : f32", False, (("v3", EXP_UNDERFLOW - 1e4),)),
    ],
)
def test_softmax(masked, masked_if, least):
    (mask,) = softmax(masked)
    assert (mask.condition, mask.masked_if, mask.required_maxima) == ("v1", masked_if, least)


@pytest.mark.parametrize(
    "masked",
    [
        "where v1 0.0 v0 of f32 : f32",
        "where v1 -50.0 v0 of f32 : f32",
        f"where v1 {math.inf} v0 of f32 : f32",
        "where v1 nan v0 of f32 : f32",
    ],
)
def test_numbers_that_scores_may_have_mask_nothing(masked):
    assert not softmax(masked)


def test_all_iterations_of_other_reductions_matter():
    assert not softmax("where v1 -inf v0 of f32 : f32", summed="amin<j>")
    assert not softmax("where v1 -inf v0 of f32 : f32", summed="amax<j>")


@pytest.mark.parametrize(
    ("lines", "masked"),
    [
        (["v8 = where v1 0.0 v0 of f32 : f32"], True),
        (["v2 = where v1 0.0 1.0 of f32 : f32", "v8 = mul v0 v2 of f32 : f32"], True),
        (["v2 = where v1 0.0 -inf of f32 : f32", "v3 = add v0 v2 of f32 : f32"], True),
        (["v2 = where v1 0.0 -inf of f32 : f32", "v3 = add v2 v0 of f32 : f32"], True),
        (["v2 = where v1 2.0 1.0 of f32 : f32", "v8 = mul v0 v2 of f32 : f32"], False),
        (["v8 = where v1 -inf v0 of f32 : f32"], False),
    ],
)
def test_sums(lines, masked):
    if lines[-1].startswith("v3"):
        lines = [*lines, "v8 = sigmoid v3 of f32 : f32"]
    assert bool(masks(PLAIN.format(lines="\n  ".join(lines)))) == masked


def test_a_stored_score_is_needed():
    text = PLAIN.format(lines="v8 = where v1 0.0 v0 of f32 : f32")
    assert masks(text)
    assert not masks(text.replace("store y[i] v9", "store y[(64)*i + j] v8"))


@pytest.mark.parametrize(("reduction", "masked"), [("all", True), ("any", False)])
def test_whether_a_row_has_no_keys(reduction, masked):
    row = f"v7 = eq v2 -inf of f32 : b1\n  v8 = reduce {reduction}<j> v7 : b1"
    text = SOFTMAX.format(masked="where v1 -inf v0 of f32 : f32", summed="sum<j>", where="i")
    text = text.replace("v7 = div v5 v6 of f32 : f32", row).replace(
        "v8 = load w[j]", "v11 = load w[j]"
    )
    text = text.replace("v9 = mul v7 v8", "v12 = where v8 0.0 v5 of f32 : f32\n  v9 = mul v12 v11")
    assert bool(masks(text)) == masked
