"""The tensors that the forward saves for the backward."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tofuse
from tests.support.call_count import count_calls
from tests.support.capture_only import check, compiled


def saved_shapes(f, *args, outputs=1):
    """The shapes of the forward's additional results that are not arguments."""
    run, recorder = compiled(f)
    results = run(*args)
    (results if isinstance(results, torch.Tensor) else results[0]).sum().backward()
    captured = recorder.captured[recorder.phases.index("forward")]
    extra = captured.results[outputs:]
    return [v.shape for v in extra if v is not None and v not in captured.graph.inputs]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_bias_dropout_add_norm_saves_statistics_and_seed():
    def f(x, bias, residual, weight, shift):
        hidden = F.dropout(x + bias, 0.1) + residual
        return F.layer_norm(hidden, (8,), weight, shift)

    shapes = saved_shapes(f, leaf(4, 8), leaf(8), leaf(4, 8), leaf(8), leaf(8))
    assert sorted(shapes) == [(2,), (4, 1), (4, 1)]


def test_results_that_the_backward_reads_are_saved():
    for f in (lambda x: F.softmax(x, -1), lambda x: F.log_softmax(x, -1), torch.tanh, F.relu):
        assert saved_shapes(f, leaf(4, 8)) == [(4, 8)]


def test_intermediate_softmax_saves_row_statistics():
    def f(x):
        return F.softmax(x, -1).relu() * 2

    assert sorted(saved_shapes(f, leaf(4, 8))) == [(4, 1), (4, 1)]


def test_arguments_are_read_again():
    assert saved_shapes(F.gelu, leaf(4, 8)) == []


def test_operands_of_products_are_saved_once():
    assert saved_shapes(lambda x, a, b: F.relu(x @ a) @ b, leaf(4, 8), leaf(8, 8), leaf(8, 8)) == [
        (4, 8)
    ]


def test_long_chains_save_intermediate_values():
    def f(x):
        for _ in range(100):
            x = torch.sin(x)
        return x

    assert 1 <= len(saved_shapes(f, leaf(4))) <= 6
    check(f, leaf(4))


def train_step(run):
    run(leaf(4)).sum().backward()


def test_work_grows_as_the_depth_of_the_graph():
    counts = []
    for depth in (50, 100):

        def f(x, depth=depth):
            for _ in range(depth):
                x = x * 1.01 + torch.sin(x) * 0.1
            return x

        torch.compiler.reset()
        run, _ = compiled(f)
        counts.append(count_calls(partial(train_step, run)))
    assert counts[1] < 2.5 * counts[0]


def test_mutated_arguments_are_not_saved():
    def f(x, w):
        y = (x + 1) * w
        x.mul_(2)
        return y + x.sin()

    weight = leaf(4)
    results = []
    for run in (f, compiled(f)[0]):
        x = torch.arange(4.0)
        weight.grad = None
        run(x, weight).sum().backward()
        results.append((x, weight.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("dynamic", [False, True])
def test_checkpointing(dynamic):
    def block(x, a, b):
        return torch.tanh(torch.tanh(x @ a) @ b)

    def f(x, a, b):
        return checkpoint(block, x, a, b, use_reentrant=False).sin()

    check(f, leaf(4, 8), leaf(8, 8), leaf(8, 8), dynamic=dynamic)
    assert len(saved_shapes(f, leaf(4, 8), leaf(8, 8), leaf(8, 8))) <= 1


def test_the_backward_may_split_a_value_of_the_forward():
    """The gradient of a cross product unbinds both factors in the backward."""
    check(lambda x: torch.linalg.cross(x.sin(), x.cos()), leaf(5, 3))


def test_a_size_that_only_checks_of_the_forward_read():
    def program(z, x):
        first = x.select(-1, 0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.logsigmoid(torch.atleast_2d(x))
            product = F.conv1d(y, y)
            half = product[1::2, ::2]
        F.one_hot(torch.full((half.shape[0], 3), -1) % 4, 4)
        picked = torch.select_scatter(product, product.select(0, 0) * 2, 0, -1)
        return product.half(), picked, y.reshape(-1).add_(1), product, first

    run = tofuse.compile(program, dynamic=True)
    for side in (9, 6):
        z, x = torch.randn(3, dtype=torch.complex64), torch.randn(side, 3, side).half()
        x.requires_grad_()
        got, expected = (
            torch.autograd.grad([t.float().sum() for t in f(z, x)], x)[0] for f in (run, program)
        )
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
