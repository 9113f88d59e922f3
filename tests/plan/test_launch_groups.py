"""Groups of launches: which launches are grouped, in which order, and the results."""

import threading

import pytest
import torch

import tofuse
from tofuse.ir.launch_facts import LaunchFacts
from tofuse.ir.parse_plan import parse_plan
from tofuse.ir.plan import Launch
from tofuse.ir.verify_plan import verify_plan
from tofuse.plan.kernel_binding import KernelBinding
from tofuse.plan.launch_groups import group_launches, launch_count

BINDINGS = {
    0: KernelBinding(0, (), (), LaunchFacts((False, True))),
    1: KernelBinding(1, (), (), LaunchFacts((True,))),
    2: KernelBinding(2, (), (), LaunchFacts(None)),
    3: KernelBinding(3, (), (), LaunchFacts((False, True), group_limit=2)),
    4: KernelBinding(4, (), (), LaunchFacts((False, True), group_limit=2, aligned_sizes=(1,))),
}


def launch_order(*lines):
    body = "\n".join(f"  {x}" for x in lines)
    plan = group_launches(
        parse_plan(f"plan p(t_a{{4}}, t_b{{4}}) {{\n{body}\n  return\n}}"), BINDINGS
    )
    verify_plan(plan)
    assert repr(parse_plan(repr(plan))) == repr(plan)
    return [(x.name, x.group) for x in plan.steps if isinstance(x, Launch)]


ALLOCATIONS = [f"t_{n} = allocate f32[4]{{1}}" for n in "cdef"]


def test_independent_launches_are_grouped():
    lines = [ALLOCATIONS[0], "launch 0 one(t_a, t_c)", ALLOCATIONS[1], "launch 0 two(t_b, t_d)"]
    assert launch_order(*lines) == [("one", 0), ("two", 0)]


def test_chains_are_grouped_by_level():
    lines = [*ALLOCATIONS, "launch 0 one(t_a, t_c)", "launch 0 next(t_c, t_d)"]
    lines += ["launch 0 two(t_b, t_e)", "launch 0 last(t_e, t_f)", "release t_c"]
    assert launch_order(*lines) == [("one", 0), ("two", 0), ("next", 1), ("last", 1)]


@pytest.mark.parametrize(
    "second",
    ["launch 0 two(t_c, t_d)", "launch 0 two(t_b, t_a)", "launch 1 two(t_c)", "launch 2 two(t_b)"],
)
def test_dependent_launches_are_not_grouped(second):
    assert launch_order(*ALLOCATIONS, "launch 0 one(t_a, t_c)", second) == [
        ("one", None),
        ("two", None),
    ]


def test_launches_of_a_limited_kernel_share_one_with_as_many_of_its_own():
    places = [("a", "c"), ("b", "d"), ("a", "e"), ("b", "f")]
    launches = [f"launch 3 {x}{y}(t_{x}, t_{y})" for x, y in places]
    assert launch_order(*ALLOCATIONS, *launches) == [("ac", 0), ("bd", 0), ("ae", 1), ("bf", 1)]
    others = [launches[0], launches[1].replace("launch 3", "launch 4").replace(")", "; 7, 7)")]
    assert launch_order(*ALLOCATIONS, *others) == [("ac", None), ("bd", None)]
    last = others[1].replace("t_d", "t_f")
    mixed = [others[0], "launch 0 one(t_b, t_d)", "launch 0 two(t_b, t_e)", last]
    assert [group for _, group in launch_order(*ALLOCATIONS, *mixed)] == [None, 0, 0, None]


def test_sizes_that_are_multiples_of_16_have_groups_of_their_own():
    pairs = zip("cdef", (32, 5, 48, 7), strict=True)
    launches = [f"launch 4 {x}(t_a, t_{x}; {n - 1}, {n})" for x, n in pairs]
    expected = [("c", 0), ("e", 0), ("d", 1), ("f", 1)]
    assert launch_order(*ALLOCATIONS, *launches) == expected


def test_a_view_depends_on_its_source():
    lines = [
        *ALLOCATIONS,
        "t_v = view t_c [2]{1} + 0",
        "launch 0 one(t_a, t_c)",
        "launch 1 two(t_v)",
    ]
    assert launch_order(*lines) == [("one", None), ("two", None)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("launch 0 one(t_c, t_d)", "launch 1 two(t_c+8)"),  # the memory of a dead operand is reused
        ("launch 0 one(t_a, t_c)", "launch 0 two(t_c+8, t_e)"),
        ("launch 1 one(t_c+8)", "launch 0 two(t_c, t_d)"),
        ("launch 1 one(t_c+8)", "launch 0 two(t_c+8, t_d)"),
        ("launch 1 one(t_v)", "launch 1 two(t_c+8)"),
        ("launch 1 one(t_c+8)", "launch 1 two(t_v)"),
    ],
)
def test_a_slice_and_its_whole_tensor_are_ordered(first, second):
    view = "t_v = view t_c [2]{1} + 0"
    assert launch_order(*ALLOCATIONS, view, first, second) == [("one", None), ("two", None)]


def test_slices_that_start_elsewhere_are_independent():
    lines = [*ALLOCATIONS, "launch 1 one(t_c+0)", "launch 1 two(t_c+8)", "launch 1 next(t_c)"]
    lines += ["launch 0 reads(t_c+0, t_d)", "launch 0 too(t_c, t_e)"]
    assert launch_order(*lines) == [
        *(("one", 0), ("two", 0), ("next", None)),
        *(("reads", 1), ("too", 1)),
    ]


def test_launches_do_not_move_across_a_call():
    lines = [
        *ALLOCATIONS,
        "launch 0 one(t_a, t_c)",
        "_ = call aten.mm.default(t_a)",
        "launch 1 two(t_d)",
    ]
    assert launch_order(*lines) == [("one", None), ("two", None)]


def test_grouping_does_not_extend_the_lifetimes_of_large_tensors():
    big = [f"t_{n} = allocate f32[400000]{{1}}" for n in "cd"]
    lines = [big[0], "launch 0 one(t_a, t_c)", "release t_c", big[1], "launch 0 two(t_a, t_d)"]
    assert launch_order(*lines) == [("one", None), ("two", None)]


def random_tensors(count=60):
    generator = torch.Generator().manual_seed(0)
    sizes = [(k * 37 % 5000,) if k % 3 else (k, 64) for k in range(count)]
    return [torch.randn(s, generator=generator) for s in sizes]


def norms_and_scales(*tensors):
    return [t.square().sum() for t in tensors], [t.mul_(0.5).exp() for t in tensors]


def test_sixty_tensors():
    actual, expected = random_tensors(), random_tensors()
    report = tofuse.explain(norms_and_scales)(*random_tensors())
    assert report.launches <= 6 and report.graphs[0].shared_launches
    run = tofuse.compile(norms_and_scales, strict=True)
    for _ in range(2):
        torch.testing.assert_close(run(*actual), norms_and_scales(*expected))
        torch.testing.assert_close(actual, expected)


def test_results_are_deterministic_in_several_threads():
    run = tofuse.compile(norms_and_scales, strict=True)
    expected = run(*random_tensors())
    outputs: list[object] = []

    def work():
        outputs.extend(run(*random_tensors()) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(outputs) == 30
    for results in outputs:
        torch.testing.assert_close(results, expected, rtol=0, atol=0)


def test_results_for_several_thread_counts():
    run, before = tofuse.compile(norms_and_scales, strict=True), torch.get_num_threads()
    try:
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            torch.testing.assert_close(run(*random_tensors()), norms_and_scales(*random_tensors()))
    finally:
        torch.set_num_threads(before)


def test_dynamic_sizes():
    def f(*tensors):
        return [(t * 2).sum(0) for t in tensors]

    run = tofuse.compile(f, dynamic=True, strict=True)
    for n in (3, 70, 1025):
        tensors = [torch.randn(n, k) for k in (5, 64, 300)]
        torch.testing.assert_close(run(*tensors), f(*tensors), rtol=1e-4, atol=1e-4)


def test_an_index_out_of_range_raises():
    def f(a, b, i):
        return a[i] + 1, b[i] * 2

    run = tofuse.compile(f, strict=True)
    a, b = torch.randn(10, 4), torch.randn(12, 4)
    run(a, b, torch.tensor([1, 2]))
    with pytest.raises(IndexError, match="out of range"):
        run(a, b, torch.tensor([1, 11]))


def test_a_group_counts_as_one_launch():
    lines = "plan p(t_a{4}) {\n  launch 0 x(t_a) in group 0\n  launch 0 y(t_a) in group 0\n"
    assert launch_count(parse_plan(f"{lines}  launch 0 z(t_a)\n  return\n}}")) == 2
