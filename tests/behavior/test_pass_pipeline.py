"""All graph passes together: required results, linear work, determinism."""

from collections import Counter

import pytest

from benchmarks.pass_graphs import PASS_GRAPHS, batched, branches, chain, ladder, split_stack
from tests.support.call_count import count_calls
from tests.support.rename import rename
from tofuse.driver.pipeline import run_graph_passes
from tofuse.ir.graph import show_graph
from tofuse.ir.parse_graph import parse_graph
from tofuse.ops.check_graph import check_graph

LENGTH = 2000


@pytest.mark.parametrize("count", [2, 16])
def test_split_stack_becomes_batched(count: int):
    split, whole = run_graph_passes(split_stack(count)), run_graph_passes(batched(count))
    check_graph(split)
    assert Counter(op.kind for op in split.ops) == Counter(op.kind for op in whole.ops)
    assert show_graph(rename(split)) == show_graph(rename(whole))
    assert all(op.kind not in ("slice", "cat", "opaque") for op in split.ops)


@pytest.mark.parametrize("make", PASS_GRAPHS)
def test_work_of_passes_is_linear(make):
    calls = []
    for size in (LENGTH // 2, LENGTH):
        graph = make(size)
        calls.append(count_calls(lambda: run_graph_passes(graph)))  # noqa: B023
    assert calls[1] < 2.2 * calls[0]


@pytest.mark.parametrize("make", [chain, ladder, branches])
def test_passes_are_deterministic(make):
    assert show_graph(run_graph_passes(make(LENGTH))) == show_graph(run_graph_passes(make(LENGTH)))


def test_layout_copy_is_removed_after_restriding():
    graph = parse_graph(
        """graph(x: b1[1,1,2], y: b1[1,1,2]) {
  v0 = cat(x, y, dim=1) : b1[1,2,2]{1,1,2}
  v1 = logical_not(v0) : b1[1,2,2]
  v2 = logical_not(v1) : b1[1,2,2]
  return v2
}"""
    )
    after = run_graph_passes(graph)
    assert [op.kind for op in after.ops] == ["cat"]
    assert run_graph_passes(after) is after
