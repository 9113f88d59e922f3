"""The check accepts eager, and detects programs with a single error."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks import programs
from benchmarks.check import check, error
from benchmarks.seeds import SEEDS, Program, Seed, pick


def no_compile(program: Program) -> Program:
    return program


def failing_tensors(seed: Seed, compiled: Program, compile_=no_compile) -> set[str]:
    comparisons = check(seed, seed.make_inputs("small"), compiled, compile_)
    return {comparison.tensor for comparison in comparisons if not comparison.is_within_limit}


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_eager_is_within_limits(seed: Seed):
    assert failing_tensors(seed, seed.program) == set()


def test_error_in_one_element():
    def with_error(x, y):
        result = programs.complex_activation(x, y)
        result[3, 4] += 1e-3
        return result

    assert failing_tensors(pick("complex_activation"), with_error) == {"output 0"}


@pytest.mark.parametrize(
    "modify",
    [lambda r: r.double(), lambda r: r[None], lambda r: r.bfloat16().float(), lambda r: r / 0.0],
    ids=["dtype", "shape", "precision", "infinity"],
)
def test_wrong_dtype_shape_or_precision(modify):
    wrong = lambda x: modify(programs.softmax(x))  # noqa: E731
    assert failing_tensors(pick("softmax"), wrong) == {"output 0"}


def test_missing_output():
    wrong = lambda x, batch: programs.gelu_bookends_kept(x, batch)[:1]  # noqa: E731
    assert failing_tensors(pick("gelu_bookends_kept"), wrong) == {"output 1"}


def wrong_dropout(forward_mask, backward_mask, scale=1 / 0.9):
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * forward_mask * scale

        @staticmethod
        def backward(ctx, gradient):
            return gradient * backward_mask * scale

    return lambda x, bias, *rest: programs.composite_tail(Dropped.apply(x + bias), *rest)


def masks(p: float = 0.1):
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(4, 16, 72, generator=generator) >= p).float() for _ in range(2)]


def test_custom_dropout_with_consistent_mask():
    first, _ = masks()
    assert failing_tensors(pick("norm_composite"), wrong_dropout(first, first)) == set()


def test_backward_with_different_mask():
    first, second = masks()
    assert "output 0" in failing_tensors(pick("norm_composite"), wrong_dropout(first, second))


def test_dropout_without_scaling():
    first, _ = masks()
    found = failing_tensors(pick("norm_composite"), wrong_dropout(first, first, scale=1.0))
    assert {"output 0", "gradient 0"} <= found


def test_dropout_with_wrong_probability():
    first, _ = masks(p=0.2)
    assert "drop rate" in failing_tensors(pick("norm_composite"), wrong_dropout(first, first))


def test_dropout_variant_is_compared():
    def modify(program: Program) -> Program:
        return lambda *inputs: tuple(output * 1.01 for output in program(*inputs))

    assert "variant's output 0" in failing_tensors(pick("norm_rms"), programs.rms, modify)


def test_error_with_special_values():
    special = torch.tensor([1.0, float("inf"), float("nan")])
    assert error(special, special.double()) == 0.0
    assert error(-special, special.double()) == float("inf")
    assert error(torch.zeros(3), special.double()) == float("inf")


def test_wrong_gradient():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 2

    def wrong(x, bias, residual, weight, shift):
        return F.layer_norm(x + bias + residual, (72,), Halved.apply(weight), shift)

    assert failing_tensors(pick("norm_composite_keep_all"), wrong) == {"gradient 3"}
