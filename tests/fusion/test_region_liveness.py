"""Peak memory of a partition."""

from tests.support.vector_graphs import VECTOR_BYTES, call_line, make_graph, make_partition
from tofuse.fusion.region_liveness import peak_bytes


def test_releasable_inputs_count_until_their_last_read():
    graph = make_graph(call_line("b", "x"), call_line("c", "b"), outputs="c")
    part = make_partition(graph)
    assert peak_bytes(part) == 2 * VECTOR_BYTES
    assert peak_bytes(part, frozenset({"x"})) == 2 * VECTOR_BYTES
    graph = make_graph(
        call_line("b", "x"), call_line("c", "b"), call_line("d", "x"), outputs="c, d"
    )
    assert peak_bytes(make_partition(graph), frozenset({"x"})) == 3 * VECTOR_BYTES
