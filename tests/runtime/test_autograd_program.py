"""Programs on their graphs: results that are arguments, results that the loss does not use."""

import pytest
import torch
from torch import Tensor

import tofuse
from benchmarks.allocations import allocations
from tofuse.errors import CaptureError


@pytest.mark.parametrize("rank", [0, 2])
def test_an_argument_returned_beside_views_of_it_is_itself(rank):
    def program(x):
        return x.view(1, *x.shape).squeeze(0), x, x.view_as(x)

    x = torch.randn([3] * rank)
    compiled = tofuse.compile(program, capture="trace")
    for _ in range(2):
        first, second, third = compiled(x)
        assert second is x and first is not x and third is not x
        assert first.data_ptr() == third.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("written", ["none", "another", "the same"])
def test_changed_layouts_of_arguments_under_no_grad(written):
    """With a write that autograd does not see, torch would return the wrong results."""

    def program(x, y):
        z = x.swapaxes_(2, 0)
        if written != "none":
            (y if written == "another" else z).neg_()
        return z.mean(), y + 1

    outcomes = []
    for run in (program, tofuse.compile(program, capture="trace")):
        torch.manual_seed(0)
        x, y = (torch.randn(shape).requires_grad_() * 1 for shape in ((2, 3, 4), ()))
        with torch.no_grad():
            try:
                outcomes.append((*run(x, y), x, y))
            except CaptureError as error:
                assert written != "none" and "no_grad" in str(error)
                return
    torch.testing.assert_close(*outcomes)
    assert outcomes[0][2].stride() == outcomes[1][2].stride()


def three_results(x, w):
    a = (x.sin() @ w).relu()
    return a @ w.t(), (a * x).sum(-1), a.cumsum(0).exp()


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_loss_may_use_some_results(used, dynamic):
    compiled = tofuse.compile(three_results, dynamic=dynamic)
    for rows in (5, 5, 1, 7):
        x, w = (torch.randn(n, 6, dtype=torch.float64, requires_grad=True) for n in (rows, 6))
        gradients = []
        for run in (three_results, compiled, compiled):
            results = run(x, w)
            gradients.append(torch.autograd.grad([results[k].mean() for k in used], [x, w]))
        for found in gradients[1:]:
            torch.testing.assert_close(found, gradients[0])


def test_second_derivatives_where_the_loss_uses_some_results():
    x, w = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    second = []
    for run in (three_results, tofuse.compile(three_results)):
        (first,) = torch.autograd.grad(run(x, w)[1].sum(), [x], create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), [x, w]))
    torch.testing.assert_close(*second)


def test_an_unused_result_costs_no_memory_in_the_backward():
    def program(x):
        y = x * 2
        return y.sin(), *(y + k for k in range(8))

    x = torch.randn(1 << 18, requires_grad=True)
    compiled = tofuse.compile(program, pool_bytes=0)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(compiled(x)[0].sum(), [x])

    for _ in range(3):
        step()
    eager = allocations(lambda: torch.autograd.grad(program(x)[0].sum(), [x])).peak
    assert allocations(step).peak <= eager
