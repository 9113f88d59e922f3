"""The check passes eager itself, and catches programs that are wrong in one thing."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks import programs
from benchmarks.check import check, error
from benchmarks.seeds import SEEDS, Program, Seed, pick


def unchanged(program: Program) -> Program:
    return program


def faults(seed: Seed, compiled: Program, compile_=unchanged) -> set[str]:
    findings = check(seed, seed.make_inputs("small"), compiled, compile_)
    return {finding.what for finding in findings if not finding.right}


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_eager_passes(seed: Seed):
    assert faults(seed, seed.program) == set()


def test_a_small_error_in_one_element():
    def off(x, y):
        result = programs.complex_activation(x, y)
        result[3, 4] += 1e-3
        return result

    assert faults(pick("complex_activation"), off) == {"output 0"}


@pytest.mark.parametrize(
    "spoil",
    [lambda r: r.double(), lambda r: r[None], lambda r: r.bfloat16().float(), lambda r: r / 0.0],
    ids=["dtype", "shape", "precision", "infinity"],
)
def test_another_type_shape_or_precision(spoil):
    wrong = lambda x: spoil(programs.softmax(x))  # noqa: E731
    assert faults(pick("softmax"), wrong) == {"output 0"}


def test_a_missing_output():
    wrong = lambda x, batch: programs.gelu_bookends_kept(x, batch)[:1]  # noqa: E731
    assert faults(pick("gelu_bookends_kept"), wrong) == {"output 1"}


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


def test_a_dropout_of_ones_own_is_right():
    first, _ = masks()
    assert faults(pick("norm_composite"), wrong_dropout(first, first)) == set()


def test_backward_with_another_mask():
    first, second = masks()
    assert "output 0" in faults(pick("norm_composite"), wrong_dropout(first, second))


def test_dropout_without_the_scale():
    first, _ = masks()
    found = faults(pick("norm_composite"), wrong_dropout(first, first, scale=1.0))
    assert {"output 0", "gradient 0"} <= found


def test_dropout_with_another_probability():
    first, _ = masks(p=0.2)
    assert "share dropped" in faults(pick("norm_composite"), wrong_dropout(first, first))


def test_the_twin_is_judged_too():
    def spoil(program: Program) -> Program:
        return lambda *inputs: tuple(output * 1.01 for output in program(*inputs))

    assert "twin's output 0" in faults(pick("norm_rms"), programs.rms, spoil)


def test_special_values():
    special = torch.tensor([1.0, float("inf"), float("nan")])
    assert error(special, special.double()) == 0.0
    assert error(-special, special.double()) == float("inf")
    assert error(torch.zeros(3), special.double()) == float("inf")


def test_a_gradient_that_is_wrong():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 2

    def wrong(x, bias, residual, weight, shift):
        return F.layer_norm(x + bias + residual, (72,), Halved.apply(weight), shift)

    assert faults(pick("norm_composite_keep_all"), wrong) == {"gradient 3"}
