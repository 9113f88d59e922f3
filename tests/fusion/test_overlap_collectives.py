"""Collectives start early, and work whose order is free runs meanwhile."""

from functools import partial

from tests.support.call_count import count_calls
from tests.support.vector_graphs import call_line, make_graph, make_partition
from tofuse.fusion.overlap_collectives import overlap_collectives
from tofuse.fusion.region_liveness import peak_bytes


def names(graph):
    """The first output of each region after the pass, in order."""
    part = overlap_collectives(make_partition(graph))
    return " ".join(r.outputs[0].name for r in part.regions)


def communication(*names, backward=()):
    """Return the lines of collectives in a chain, and of calls whose order is free.

    `backward` has the names of such calls, with the number of the wait that they read.
    """
    lines = []
    for k, name in enumerate(names):
        lines += [
            call_line(f"c{k}", f"w{k - 1}" if k else "x"),
            collective_line(name, f"c{k}"),
            wait_line(f"w{k}", name),
        ]
    return lines + [call_line(name, f"w{k}") for name, k in backward]


def collective_line(name, source):
    target = "_c10d_functional.all_gather_into_tensor.default"
    return (
        f"{name} = opaque({source}, args='$0, 2, \"0\"', effect=True, target='{target}') : "
        "f32[1000]"
    )


def wait_line(name, source):
    target = "_c10d_functional.wait_tensor.default"
    return f"{name} = opaque({source}, args='$0', target='{target}') : f32[1000]"


def test_work_whose_order_is_free_runs_beside_collectives():
    lines = communication("g0", "g1", "g2", backward=[("a", 0), ("b", 0), ("d", 1)])
    graph = make_graph(*lines, outputs="w2, a, b, d")
    assert names(graph) == "c0 g0 w0 c1 g1 a b w1 c2 g2 d w2"


def test_collectives_with_nothing_beside_share_the_work_of_the_one_before():
    lines = communication("g0", "g1", "g2", "g3", backward=[(name, 0) for name in "abd"])
    graph = make_graph(*lines, outputs="w3, a, b, d")
    assert names(graph) == "c0 g0 w0 c1 g1 a w1 c2 g2 b w2 c3 g3 d w3"


def test_collectives_that_are_ready_start_together():
    lines = [collective_line("g0", "x"), collective_line("g1", "x"), call_line("a", "x")]
    lines += [wait_line("w0", "g0"), wait_line("w1", "g1"), call_line("b", "a")]
    lines += [collective_line("g2", "b"), wait_line("w2", "g2")]
    graph = make_graph(*lines, outputs="w0, w1, w2")
    assert names(graph) == "g0 g1 a b g2 w0 w1 w2"


def test_memory_limits_the_overlap():
    """Each of the free calls frees nothing and holds a vector until the end."""
    free = [(f"a{k}", 0) for k in range(8)]
    lines = communication(*(f"g{k}" for k in range(4)), backward=free)
    outputs = ", ".join(["w3", *(name for name, _ in free)])
    for large in False, True:
        texts = [line.replace("1000", str(1 << 20)) if large else line for line in lines]
        inputs = f"x: f32[{1 << 20 if large else 1000}]"
        before = make_partition(make_graph(*texts, outputs=outputs, inputs=inputs))
        after = overlap_collectives(before)
        assert peak_bytes(after) <= peak_bytes(before) + max(256 * 1024, peak_bytes(before) / 5)


def test_work_grows_as_the_number_of_collectives():
    counts = []
    for count in (100, 200):
        lines = communication(
            *(f"g{k}" for k in range(count)), backward=[(f"a{k}", k) for k in range(count)]
        )
        outputs = ", ".join([f"w{count - 1}", *(f"a{k}" for k in range(count))])
        part = make_partition(make_graph(*lines, outputs=outputs))
        counts.append(count_calls(partial(overlap_collectives, part)))
    assert counts[1] < 2.3 * counts[0]
