"""Programs on tensors that wrap one other tensor."""

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

import tofuse


class Wrapped(torch.Tensor):
    """A tensor around one other tensor, which computes as that does."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device,
            requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner):
        self.wrapped = inner

    def __tensor_flatten__(self):
        return ["wrapped"], None

    @staticmethod
    def __tensor_unflatten__(tensors, context, size, stride):
        return Wrapped(tensors["wrapped"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        kwargs = kwargs or {}
        inside = tree_map(lambda t: t.wrapped if isinstance(t, Wrapped) else t, (args, kwargs))
        result = func(*inside[0], **inside[1])
        around = tree_map(lambda t: Wrapped(t) if isinstance(t, torch.Tensor) else t, result)
        return return_and_correct_aliasing(func, args, kwargs, around)


def program(x, w):
    return (x.sin() * w + 1).sum(-1)


@pytest.mark.parametrize("training", [False, True])
def test_a_tensor_that_wraps_one_tensor(training, fresh_dynamo):
    """The compiled graph takes as many tensors as the program: it is not called directly."""
    x = Wrapped(torch.randn(3, 4))
    results: list[object] = []
    for call in (program, tofuse.compile(program, strict=True)):
        w = torch.ones(4, requires_grad=training)
        result = call(x, w)
        assert isinstance(result, Wrapped)
        if training:
            result.sum().backward()
        grad = w.grad.wrapped if isinstance(w.grad, Wrapped) else w.grad
        results.append([result.wrapped.detach(), *([grad] if training else [])])
    torch.testing.assert_close(results[1], results[0])
