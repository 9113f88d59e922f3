"""Many launches as one: which go together, that the order holds, and the numbers."""

import threading

import pytest
import torch

import tofuse
from tofuse.ir.plan import Launch, show_plan
from tofuse.ir.plan.parse import parse_plan
from tofuse.ir.plan.verify import verify_plan
from tofuse.plan.launch_groups import launch_count, launch_together

MAP = {0: (False, True), 1: (True,), 2: None}


def grouped(*lines):
    body = "\n".join(f"  {x}" for x in lines)
    plan = launch_together(parse_plan(f"plan p(t_a{{4}}, t_b{{4}}) {{\n{body}\n  return\n}}"), MAP)
    verify_plan(plan)
    assert show_plan(parse_plan(show_plan(plan))) == show_plan(plan)
    return [(x.name, x.group) for x in plan.steps if isinstance(x, Launch)]


NEW = [f"t_{n} = allocate f32[4]{{1}}" for n in "cdef"]


def test_independent_launches_are_one():
    lines = [NEW[0], "launch 0 one(t_a, t_c)", NEW[1], "launch 0 two(t_b, t_d)"]
    assert grouped(*lines) == [("one", 0), ("two", 0)]


def test_chains_go_level_by_level():
    lines = [*NEW, "launch 0 one(t_a, t_c)", "launch 0 next(t_c, t_d)"]
    lines += ["launch 0 two(t_b, t_e)", "launch 0 last(t_e, t_f)", "release t_c"]
    assert grouped(*lines) == [("one", 0), ("two", 0), ("next", 1), ("last", 1)]


@pytest.mark.parametrize(
    "second",
    ["launch 0 two(t_c, t_d)", "launch 0 two(t_b, t_a)", "launch 1 two(t_c)", "launch 2 two(t_b)"],
)
def test_what_depends_comes_after(second):
    assert grouped(*NEW, "launch 0 one(t_a, t_c)", second) == [("one", None), ("two", None)]


def test_a_view_is_the_memory_it_is_on():
    lines = [*NEW, "t_v = view t_c [2]{1} + 0", "launch 0 one(t_a, t_c)", "launch 1 two(t_v)"]
    assert grouped(*lines) == [("one", None), ("two", None)]


def test_a_call_stands_between():
    lines = [
        *NEW,
        "launch 0 one(t_a, t_c)",
        "_ = call aten.mm.default(t_a)",
        "launch 1 two(t_d)",
    ]
    assert grouped(*lines) == [("one", None), ("two", None)]


def test_large_tensors_that_follow_each_other_do_not_live_together():
    big = [f"t_{n} = allocate f32[400000]{{1}}" for n in "cd"]
    lines = [big[0], "launch 0 one(t_a, t_c)", "release t_c", big[1], "launch 0 two(t_a, t_d)"]
    assert grouped(*lines) == [("one", None), ("two", None)]


def many(count=60):
    generator = torch.Generator().manual_seed(0)
    sizes = [(k * 37 % 5000,) if k % 3 else (k, 64) for k in range(count)]
    return [torch.randn(s, generator=generator) for s in sizes]


def norms_and_scales(*tensors):
    return [t.square().sum() for t in tensors], [t.mul_(0.5).exp() for t in tensors]


def test_sixty_tensors():
    mine, theirs = many(), many()
    report = tofuse.explain(norms_and_scales)(*many())
    assert report.launches <= 6 and report.graphs[0].sharing
    run = tofuse.compile(norms_and_scales, strict=True)
    for _ in range(2):
        torch.testing.assert_close(run(*mine), norms_and_scales(*theirs))
        torch.testing.assert_close(mine, theirs)


def test_the_same_bits_every_time_and_in_several_threads():
    run = tofuse.compile(norms_and_scales, strict=True)
    expected = run(*many())
    found: list[object] = []

    def work():
        found.extend(run(*many()) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 30
    for results in found:
        torch.testing.assert_close(results, expected, rtol=0, atol=0)


def test_thread_counts():
    run, before = tofuse.compile(norms_and_scales, strict=True), torch.get_num_threads()
    try:
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            torch.testing.assert_close(run(*many()), norms_and_scales(*many()))
    finally:
        torch.set_num_threads(before)


def test_sizes_as_symbols():
    def f(*tensors):
        return [(t * 2).sum(0) for t in tensors]

    run = tofuse.compile(f, dynamic=True, strict=True)
    for n in (3, 70, 1025):
        tensors = [torch.randn(n, k) for k in (5, 64, 300)]
        torch.testing.assert_close(run(*tensors), f(*tensors), rtol=1e-4, atol=1e-4)


def test_an_index_out_of_range():
    def f(a, b, i):
        return a[i] + 1, b[i] * 2

    run = tofuse.compile(f, strict=True)
    a, b = torch.randn(10, 4), torch.randn(12, 4)
    run(a, b, torch.tensor([1, 2]))
    with pytest.raises(IndexError, match="out of range"):
        run(a, b, torch.tensor([1, 11]))


def test_launches_are_counted():
    lines = "plan p(t_a{4}) {\n  launch 0 x(t_a) in group 0\n  launch 0 y(t_a) in group 0\n"
    assert launch_count(parse_plan(f"{lines}  launch 0 z(t_a)\n  return\n}}")) == 2
