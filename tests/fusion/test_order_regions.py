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
