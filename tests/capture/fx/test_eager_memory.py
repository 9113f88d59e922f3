"""The predicted memory of the eager program, for programs of known memory."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.capture_only import compiled
from tofuse.capture.fx.eager_memory import EagerMemory

N = 4 * 64 * 64  # bytes of a matrix
R = 4 * 64  # bytes of one number per row


def eager_memory_of(f, *args):
    run, recorder = compiled(f)
    result = run(*args)
    if result.requires_grad:
        result.sum().backward()
    found = recorder.captured[0].eager_memory
    assert all(c.eager_memory == found for c in recorder.captured)
    return found


def matrix(grad=False):
    return torch.randn(64, 64, requires_grad=grad)


def test_decomposed_calls_count_as_one():
    assert eager_memory_of(lambda x: F.softmax(x, -1), matrix()) == EagerMemory(
        N, num_forward_outputs=1
    )
    assert eager_memory_of(lambda x: F.gelu(x) + 1, matrix()) == EagerMemory(
        2 * N, num_forward_outputs=1
    )
    assert eager_memory_of(lambda x: F.layer_norm(x, (64,)), matrix()).forward_peak == N


def test_tensors_are_freed_at_their_last_use():
    assert eager_memory_of(lambda x: x.sin().cos().exp().tanh(), matrix()).forward_peak == 2 * N
    assert eager_memory_of(lambda x: x.sin() + x.cos() * x.tan(), matrix()).forward_peak == 4 * N


def test_views_need_no_memory():
    assert eager_memory_of(lambda x: x.t()[3:].sum(0), matrix()).forward_peak == R
    assert (
        eager_memory_of(
            lambda x: x.sin().t().reshape(2, -1).view(64, 64).t(), matrix()
        ).forward_peak
        == 2 * N
    )


def test_saved_tensors():
    product = eager_memory_of(lambda x, w: (x @ w).relu(), matrix(True), matrix())
    assert product.forward_peak == 2 * N
    assert product.saved_bytes == 0  # the sign is read from the result
    norm = eager_memory_of(lambda x: F.layer_norm(x.sin(), (64,)), matrix(True))
    assert norm.saved_bytes == N + 2 * R
    result = eager_memory_of(lambda x: F.softmax(x, -1), matrix(True))
    assert result.saved_bytes == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_symbolic_sizes_count_with_their_hints(dynamic):
    run, recorder = compiled(lambda x: x.sin().cos().sum(), dynamic=dynamic)
    run(matrix())
    assert recorder.captured[0].eager_memory.forward_peak == 2 * N


def test_copies_of_images_that_tofuse_makes_are_not_eagers():
    def two_layers(x, w):
        return F.conv2d(F.conv2d(x, w, padding=1), w, padding=1).sigmoid()

    x, w = torch.randn(2, 3, 64, 64), torch.randn(3, 3, 3, 3, requires_grad=True)
    image = x.numel() * 4
    found = eager_memory_of(two_layers, x, w)
    assert found.saved_bytes == image  # between the layers; the rest are arguments and results
    copied = eager_memory_of(lambda x, w: two_layers(x.clone(), w), x, w)
    assert copied.saved_bytes == 2 * image
    expanded = eager_memory_of(
        lambda x, w: two_layers(x, w) * x[:, :1].expand(-1, 3, -1, -1).contiguous(), x, w
    )
    assert expanded.saved_bytes == 3 * image  # with the result of the sigmoid and the copy
