"""What a program run call by call holds, against what it is seen to hold."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.capture_only import compiled
from tofuse.capture.fx.eager_memory import EagerMemory

N = 4 * 64 * 64  # bytes of a matrix
R = 4 * 64  # bytes of one number a row


def memory(f, *args):
    run, recorder = compiled(f)
    result = run(*args)
    if result.requires_grad:
        result.sum().backward()
    found = recorder.captured[0].eager_memory
    assert all(c.eager_memory == found for c in recorder.captured)
    return found


def matrix(grad=False):
    return torch.randn(64, 64, requires_grad=grad)


def test_calls_that_were_taken_apart_count_as_one():
    assert memory(lambda x: F.softmax(x, -1), matrix()) == EagerMemory(N, num_forward_outputs=1)
    assert memory(lambda x: F.gelu(x) + 1, matrix()) == EagerMemory(2 * N, num_forward_outputs=1)
    assert memory(lambda x: F.layer_norm(x, (64,)), matrix()).forward == N


def test_tensors_are_freed_at_their_last_use():
    assert memory(lambda x: x.sin().cos().exp().tanh(), matrix()).forward == 2 * N
    assert memory(lambda x: x.sin() + x.cos() * x.tan(), matrix()).forward == 4 * N


def test_views_are_nothing():
    assert memory(lambda x: x.t()[3:].sum(0), matrix()).forward == R
    assert memory(lambda x: x.sin().t().reshape(2, -1).view(64, 64).t(), matrix()).forward == 2 * N


def test_what_autograd_keeps():
    product = memory(lambda x, w: (x @ w).relu(), matrix(True), matrix())
    assert product.forward == 2 * N
    assert product.saved == 0  # the sign is read from the result
    norm = memory(lambda x: F.layer_norm(x.sin(), (64,)), matrix(True))
    assert norm.saved == N + 2 * R
    result = memory(lambda x: F.softmax(x, -1), matrix(True))
    assert result.saved == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_symbolic_sizes_count_as_the_example_has_them(dynamic):
    run, recorder = compiled(lambda x: x.sin().cos().sum(), dynamic=dynamic)
    run(matrix())
    assert recorder.captured[0].eager_memory.forward == 2 * N
