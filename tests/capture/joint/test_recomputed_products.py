"""The products that the backward computes again instead of reading them."""

import pytest
import torch

from tests.capture.joint.test_partition import leaf, saved_shapes

SIZE = (2, 128, 16)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(1, 2), -1) @ v


def plus_weights(q, k, v):
    weights = torch.softmax(q @ k.transpose(1, 2), -1)
    return weights @ v, weights


def sorted_weights(q, k, v):
    return torch.softmax((q @ k.transpose(1, 2)).sort(-1)[0], -1) @ v


def unmatched(q, k, v):
    return torch.softmax(q @ k.transpose(1, 2)[:, :, :5], -1) @ v[:, :5]


def test_scores_and_their_reductions_are_computed_again():
    assert saved_shapes(attention, *(leaf(*SIZE) for _ in range(3))) == []


def both_dimensions(q, k, v):
    scores = q @ k.transpose(1, 2)
    return (torch.softmax(scores, -1) + torch.softmax(scores, -2)) @ v


def over_maximum(q, k, v):
    scores = q @ k.transpose(1, 2)
    return (scores / scores.amax(-1, keepdim=True)) @ v


@pytest.mark.parametrize("program", [sorted_weights, unmatched, both_dimensions, over_maximum])
def test_products_that_a_library_reads_or_that_are_small_or_compared_are_saved(program):
    shapes = saved_shapes(program, *(leaf(*SIZE) for _ in range(3)))
    assert any(len(s) == 3 and s[1] == 128 and s[2] > 1 for s in shapes)


def test_returned_weights_are_saved_for_nothing():
    shapes = saved_shapes(plus_weights, *(leaf(*SIZE) for _ in range(3)), outputs=2)
    assert shapes in ([], [(2, 128, 128)])  # the result itself


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float64, SIZE), (torch.float32, (2, 128, 48)), (torch.float32, (2, 64, 16))],
)
def test_products_that_stay_in_the_library_are_saved(dtype, size):
    tensors = [torch.randn(size, dtype=dtype, requires_grad=True) for _ in range(3)]
    assert (2, size[1], size[1]) in saved_shapes(attention, *tensors)
