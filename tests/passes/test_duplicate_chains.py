"""Products that sum over the rows of a chain get a copy of it."""

import pytest

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.cost.machine import Machine
from tofuse.driver.pipeline import cost_oracle
from tofuse.ir.graph import show_graph
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.region import Side
from tofuse.passes.duplicate_chains import duplicate_chains

# The gradient of the keys sums e over the queries; the sums of its rows are over the keys.
BACKWARD = """graph(q: f32[4,96,8], k: f32[4,96,8], g: f32[4,96], m: f32[4,96]) {
  w = permute(k, dims=(0, 2, 1)) : f32[4,8,96]
  scores = opaque(q, w, target='aten.bmm.default', args='$0, $1', shape=(4, 96, 96), dtype=f32) \
: f32[4,96,96]
  positions = iota(shape=(96,), start=0, step=1, dtype=i64) : i64[96]
  half = neg(m) : f32[4,96]
  rows = broadcast(half, shape=(4, 96, 96), dims=(0, 1)) : f32[4,96,96]
  columns = broadcast(positions, shape=(4, 96, 96), dims=(2,)) : i64[4,96,96]
  weights = convert(columns, dtype=f32) : f32[4,96,96]
  shifted = add(scores, rows) : f32[4,96,96]
  e = mul(shifted, weights) : f32[4,96,96]
  total = sum(e, dims=(2,), dtype=f32) : f32[4,96]
  turned = permute(e, dims=(0, 2, 1)) : f32[4,96,96]
  of_keys = opaque(turned, q, target='aten.bmm.default', args='$0, $1', shape=(4, 96, 8), \
dtype=f32) : f32[4,96,8]
  return total, of_keys
}"""


def duplicated(text, excluded=()):
    oracle = cost_oracle(host_target(1), Machine())
    graph = parse_graph(text)
    values = {v for v in graph.values() if v.name in excluded}
    return duplicate_chains(graph, oracle.costs_of, values)


def test_a_copy_of_the_scores_and_of_the_mask():
    found = duplicated(BACKWARD)
    assert [v.name for v in found.copies.values()] == ["scores_again"]
    names = [op.result.name for op in found.graph.ops]
    copies = [name for name in names if name.endswith("_again")]
    assert set(copies) == {
        *("scores_again", "positions_again", "columns_again", "weights_again", "half_again"),
        *("rows_again", "shifted_again", "e_again", "turned_again"),
    }
    lines = show_graph(found.graph).splitlines()
    assert any("of_keys = opaque(turned_again, q," in line for line in lines)
    assert any("total = sum(e," in line for line in lines)
    assert any("rows_again = broadcast(half_again," in line for line in lines)


def test_no_kernel_has_both():
    sides = duplicated(BACKWARD).sides
    assert sides["scores"] == sides["e"] == Side.ORIGINAL
    assert sides["scores_again"] == sides["half_again"] == Side.COPY
    assert sides["w"] == sides["q"] == Side.FACTORS
    assert {"total", "of_keys", "half"}.isdisjoint(sides)


@pytest.mark.parametrize(
    "change",
    [
        ("return total, of_keys", "return total"),  # nothing sums over the rows
        ("return total, of_keys", "return of_keys"),  # nothing needs the rows
        ("bmm.default", "matmul.default"),  # not a product of kernels
        ("f32", "f64"),
    ],
)
def test_no_copy(change):
    text = BACKWARD.replace(*change)
    if "return of_keys" in text:
        text = text.replace("  total = sum(e, dims=(2,), dtype=f32) : f32[4,96]\n", "")
    if "return total\n" in text:
        text = text[: text.index("  turned")] + text[text.index("  return") :]
    found = duplicated(text)
    assert not found.sides and not found.copies


def test_no_copy_of_excluded_chains_and_of_values_compared_with_their_maximum():
    assert not duplicated(BACKWARD, excluded={"scores"}).copies
    compared = BACKWARD.replace(
        "  turned = permute(e,",
        """  most = amax(e, dims=(2,), dtype=f32) : f32[4,96]
  along = broadcast(most, shape=(4, 96, 96), dims=(0, 1)) : f32[4,96,96]
  is_most = eq(e, along) : b1[4,96,96]
  kept = where(is_most, e, 0.0) : f32[4,96,96]
  turned = permute(kept,""",
    )
    assert not duplicated(compared).copies


def test_statistics_of_half_precision_that_a_copy_reads_are_in_float32():
    text = BACKWARD.replace("f32", "bf16").replace("half = neg(m)", "half = neg(top)")
    text = text.replace(
        "  half =", "  top = amax(scores, dims=(2,), dtype=bf16) : bf16[4,96]\n  half ="
    )
    shown = show_graph(duplicated(text).graph)
    assert "top_wide = amax(scores, dims=(2,), dtype=f32) : f32[4,96]" in shown
    assert "top_again = convert(top_wide, dtype=bf16) : bf16[4,96]" in shown
    assert "half_again = neg(top_again)" in shown and "half = neg(top)" in shown
