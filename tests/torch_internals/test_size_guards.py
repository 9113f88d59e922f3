"""Programs with symbolic sizes that are kept on disk: right for all sizes, in any order."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Shapes = Sequence[tuple[int, ...]]


def rows_of_four(x):
    return (x.reshape(-1, 4) * 2).sum(0)


PROGRAMS: dict[str, tuple[Callable, list[Shapes]]] = {
    "attention": (
        F.scaled_dot_product_attention,
        [[(2, 2, s, 8), (2, 2, t, 8), (2, 2, t, 8)] for s, t in [(5, 9), (7, 11), (9, 9), (16, 4)]],
    ),
    "rows of four": (rows_of_four, [[(s, t)] for s, t in [(2, 6), (4, 6), (3, 8), (8, 2)]]),
    "pooling": (
        lambda x: F.avg_pool2d(x, 2) + 1,
        [[(1, 2, s, s + 1)] for s in (7, 8, 9, 12)],
    ),
    "a cache that grows": (
        lambda cache, x: torch.cat([cache, x], 1).softmax(1),
        [[(2, s), (2, t)] for s, t in [(5, 9), (7, 9), (9, 9), (16, 1)]],
    ),
    "a branch on a size": (
        lambda x, y: torch.cat([x * 2, y], 0) if x.shape[0] > 3 else x.sin(),
        [[(s, 3), (s + 2, 3)] for s in (7, 9, 2, 1)],
    ),
    "numbers from sizes": (
        lambda x: x * torch.arange(x.shape[0])[:, None] + x.shape[1],
        [[(s, t)] for s, t in [(5, 9), (7, 9), (9, 9), (16, 1)]],
    ),
    "variance": (
        lambda x: x.var(1, correction=0),
        [[(s, t)] for s, t in [(5, 9), (7, 9), (9, 9), (16, 2)]],
    ),
    "convolution": (
        lambda x, w: F.conv1d(x, w, padding=1).relu(),
        [[(2, 3, s), (4, 3, 3)] for s in (5, 6, 7, 9)],
    ),
}


def check(program: Callable, compiled: Callable, shapes: Shapes, *, grad: bool) -> None:
    """Compare the results, and the gradients with `grad`, with those of eager."""
    args = [torch.randn(s, requires_grad=grad) for s in shapes]
    expected, found = program(*args), compiled(*args)
    torch.testing.assert_close(found, expected)
    if grad:
        tangent = torch.randn_like(expected)
        derived = torch.autograd.grad(expected, args, tangent, allow_unused=True)
        again = torch.autograd.grad(found, args, tangent, allow_unused=True)
        torch.testing.assert_close(again, derived, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_from_disk_is_right_for_all_sizes(counted, name, grad):
    program, calls = PROGRAMS[name]
    for order in (calls, calls, calls[::-1], calls[2:] + calls[:2]):
        compiled = counted(program, dynamic=True)
        for shapes in order:
            check(program, compiled, shapes, grad=grad)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"a branch on a size"}))
def test_a_second_process_compiles_nothing(counted, name, grad):
    program, calls = PROGRAMS[name]
    for is_first in (True, False):
        compiled = counted(program, dynamic=True)
        for shapes in calls[:1]:
            check(program, compiled, shapes, grad=grad)
        assert bool(counted.compiled) == is_first


def test_a_guard_that_tracing_added_is_checked_in_the_second_process(counted):
    for shape, is_known in [((2, 6), False), ((6, 10), True), ((3, 8), False)]:
        # tracing the backward has found that rows of four end within rows of six
        check(rows_of_four, counted(rows_of_four, dynamic=True), [shape], grad=True)
        assert bool(counted.compiled) != is_known


def test_sizes_in_a_range_have_programs_of_their_own(counted):
    def program(x):
        return x.sin() + x.shape[0]

    for low in (2, 4):
        x = torch.randn(8, 3)
        torch._dynamo.mark_dynamic(x, 0, min=low, max=64)
        torch.testing.assert_close(counted(program)(x), program(x))
        assert counted.compiled == ["inference"]


def test_sizes_that_vary_are_compiled_once_for_all_processes(counted):
    def program(x):
        return (x * 2).cumsum(0)

    for sizes, count in [((3, 5, 7), 2), ((4, 6, 9), 1)]:  # the first size of each is constant
        compiled = counted(program)
        for n in sizes:
            x = torch.randn(n, 2)
            torch.testing.assert_close(compiled(x), program(x))
        assert len(counted.compiled) == count
