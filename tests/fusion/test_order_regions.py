"""Regions run in the order with the lowest peak memory."""

from functools import partial

from tests.support.call_count import count_calls
from tests.support.vector_graphs import VECTOR_BYTES, call_line, make_graph, make_partition
from tofuse.fusion.order_regions import order_regions
from tofuse.fusion.region_liveness import peak_bytes


def first_outputs(part):
    """The first output of each region, in order."""
    return [r.outputs[0].name for r in part.regions]


CALLS_BEFORE_READERS = make_graph(
    *(call_line(f"b{k}", "x") for k in range(4)),
    *(call_line(f"s{k}", f"b{k}", 10) for k in range(4)),
    outputs="s0, s1, s2, s3",
)


def enlarge(text):
    """Replace vectors of 4 KB by vectors of 4 MB."""
    return text.replace("1000", str(1 << 20))


def test_regions_that_free_nothing_run_late():
    lines = [call_line(f"w{k}", f"y{k}") for k in range(3)]
    lines += [call_line("a", "x"), call_line("b", "a"), call_line("c", "b", 10)]
    inputs = ", ".join(f"{n}: f32[1000]" for n in ("x", "y0", "y1", "y2"))
    reductions = [
        f"s{k} = opaque({'c' if k == 0 else f's{k - 1}'}, w{k}, args='$0, $1', "
        "target='my.op.default') : f32[10]"
        for k in range(3)
    ]
    graph = make_graph(*map(enlarge, [*lines, *reductions]), outputs="s2", inputs=enlarge(inputs))
    part = order_regions(make_partition(graph))
    assert first_outputs(part) == ["a", "b", "c", "w0", "s0", "w1", "s1", "w2", "s2"]
    assert peak_bytes(part) < peak_bytes(make_partition(graph)) / 2


def test_readers_run_right_after_producers():
    part = order_regions(make_partition(CALLS_BEFORE_READERS))
    assert first_outputs(part) == ["b0", "s0", "b1", "s1", "b2", "s2", "b3", "s3"]
    assert peak_bytes(make_partition(CALLS_BEFORE_READERS)) == 4 * VECTOR_BYTES + 40
    assert peak_bytes(part) == VECTOR_BYTES + 4 * 40
    assert first_outputs(order_regions(part)) == first_outputs(part)


def test_program_order_is_kept_if_nothing_is_gained():
    graph = make_graph(
        call_line("a", "x"),
        call_line("b", "a"),
        call_line("c", "x"),
        call_line("d", "c"),
        outputs="b, d",
    )
    part = make_partition(graph)
    assert order_regions(part) is part


def test_effects_keep_their_order():
    graph = make_graph(
        *(call_line(f"b{k}", "x", effect=True) for k in range(3)),
        *(call_line(f"s{k}", f"b{k}", 10) for k in range(3)),
        outputs="s0, s1, s2",
    )
    order = first_outputs(order_regions(make_partition(graph)))
    assert [n for n in order if n.startswith("b")] == ["b0", "b1", "b2"]


def test_work_grows_as_the_number_of_regions():
    counts = []
    for count in (500, 1000):
        lines = []
        for k in range(count):
            source = "x" if k == 0 else f"s{k - 1}"
            lines += [call_line(f"b{k}", source), call_line(f"s{k}", f"b{k}")]
        part = make_partition(make_graph(*lines, outputs=f"s{count - 1}"))
        assert peak_bytes(order_regions(part)) == 2 * VECTOR_BYTES
        counts.append(count_calls(partial(order_regions, part)))
    assert counts[1] < 2.3 * counts[0]


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
    order = first_outputs(order_regions(make_partition(graph)))
    assert order == ["c0", "g0", "w0", "c1", "g1", "a", "b", "w1", "c2", "g2", "d", "w2"]


def test_collectives_with_nothing_beside_share_the_work_of_the_one_before():
    lines = communication("g0", "g1", "g2", "g3", backward=[(name, 0) for name in "abd"])
    graph = make_graph(*lines, outputs="w3, a, b, d")
    order = first_outputs(order_regions(make_partition(graph)))
    text = " ".join(order)
    assert text == "c0 g0 w0 c1 g1 a w1 c2 g2 b w2 c3 g3 d w3"


def test_work_grows_as_the_number_of_collectives():
    counts = []
    for count in (100, 200):
        lines = communication(
            *(f"g{k}" for k in range(count)), backward=[(f"a{k}", k) for k in range(count)]
        )
        outputs = ", ".join([f"w{count - 1}", *(f"a{k}" for k in range(count))])
        part = make_partition(make_graph(*lines, outputs=outputs))
        counts.append(count_calls(partial(order_regions, part)))
    assert counts[1] < 2.3 * counts[0]
