"""`interpolate` beside indexed reads and writes, whose pass follows: values and gradients."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def after_a_mask_write(x, w):
    y = (x * 1.5).clone()
    y[y > 0] = w
    return F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False) * 2


def before_a_scalar_read(x, i):
    return F.interpolate(x * 2, size=(7, 5), mode="bicubic")[:, :, i].sin() + 1


def around_a_scalar_write(x, i, v):
    y = F.interpolate(x * 2, scale_factor=3.0, mode="nearest").clone()
    y[:, i] = v
    return F.interpolate(y, size=(4, 9), mode="bilinear", antialias=True)


def of_bytes(x, i):
    image = (x.sigmoid() * 100).to(torch.uint8)
    return F.interpolate(image, scale_factor=2, mode="bilinear")[:, i].float() + x.sum()


def image(*shape):
    return torch.randn(*shape).requires_grad_()


CASES = (
    (after_a_mask_write, lambda: (image(2, 3, 5, 7), torch.tensor(0.5, requires_grad=True))),
    (before_a_scalar_read, lambda: (image(1, 2, 3, 3), torch.tensor(1))),
    (around_a_scalar_write, lambda: (image(1, 3, 2, 5), torch.tensor(2), torch.tensor(3.0))),
    (of_bytes, lambda: (image(2, 3, 4, 5), torch.tensor(1))),
)


@pytest.mark.parametrize(("program", "make"), CASES, ids=lambda c: c.__name__)
def test_interpolate_beside_indexing_is_eager(program, make):
    arguments = make()
    wanted = [t for t in arguments if t.requires_grad]
    expected = program(*arguments)
    result = tofuse.compile(program, strict=True)(*arguments)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    gradients = [torch.autograd.grad(r.square().sum(), wanted) for r in (result, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
