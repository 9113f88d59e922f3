"""Statements of a fused concat count only in the loop segments that need them."""

from tests.backends.cpu.cost.test_nest_cost import cost
from tests.support.kernels import kernel
from tofuse.analysis.guard_ranges import touched_fractions
from tofuse.backends.cpu.cost.guard_coverage import statement_coverage

CONCAT = """kernel k(x: in f32, w: in f32, z: in f32, y: out f32) over i:4096 j:{n} {{
  v0 = in_range [j] 0 {m} : b1
  v1 = load x[({m})*i + j] if v0 : f32
  v2 = tanh v1 of f32 : f32
  v3 = in_range [j] {m} {n} : b1
  v4 = load x[({m})*i + j + -{m}] if v3 : f32
  v5 = load w[({n})*i + j + -{m}] if v3 : f32
  v6 = load w[({n})*i + j + {m}] if v0 : f32
  v7 = add v4 v5 of f32 : f32
  v8 = add v2 v6 of f32 : f32
  v9 = where v0 v8 v7 of f32 : f32
  v10 = load z[({n})*i + j] : f32
  v11 = add v9 v10 of f32 : f32
  store y[({n})*i + j] v11 : f32
}}"""


def concat_kernel(m, n):
    return kernel(CONCAT.format(m=m, n=n))


def test_a_statement_is_live_in_the_segments_that_use_it():
    k = concat_kernel(256, 1024)
    found = {
        s.name: part for s, part in statement_coverage(k, ("j",)).items() if hasattr(s, "name")
    }
    assert found["v2"] == found["v1"] == found["v6"] == 0.25
    assert found["v7"] == found["v4"] == found["v5"] == 0.75
    assert found["v9"] == found["v10"] == found["v11"] == 1.0


def test_axes_without_guards_have_no_coverage():
    assert statement_coverage(concat_kernel(256, 1024), ("i",)) == {}
    assert statement_coverage(concat_kernel(256, 1024), ()) == {}
    plain = (
        "kernel k(x: in f32, y: out f32) over i:8 {\n  v = load x[i] : f32\n  store y[i] v : f32\n}"
    )
    assert statement_coverage(kernel(plain), ("i",)) == {}


def test_elements_that_two_operands_read_are_touched_once():
    k = concat_kernel(512, 1024)
    assert touched_fractions(k)["x"] == 0.5  # both operands read the same elements
    assert touched_fractions(k)["w"] == 1.0  # each operand reads other elements
    assert touched_fractions(k)["z"] == touched_fractions(k)["y"] == 1.0


def test_an_expensive_operand_costs_by_its_length():
    short, half = (cost(concat_kernel(m, 1024)).work_us for m in (64, 512))
    assert short < 0.8 * half
