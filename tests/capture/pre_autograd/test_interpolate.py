"""`interpolate` beside indexed reads and writes, whose pass follows: values and gradients."""

import random

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


MODES = {
    1: ("nearest", "nearest-exact", "linear", "area"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
    3: ("nearest", "nearest-exact", "trilinear", "area"),
}
LINEAR = ("linear", "bilinear", "bicubic", "trilinear")


def random_call(draw):
    """Return random arguments of `interpolate`, and the number of image dimensions."""
    count = draw.randint(1, 3)
    mode = draw.choice(MODES[count])
    options = {"mode": mode}
    if draw.random() < 0.5:
        options["size"] = draw.choice([draw.randint(1, 9), [draw.randint(1, 9)] * count])
    else:
        options["scale_factor"] = draw.choice([1, 2, 3.0, 0.5, 1.7, [1.3] * count])
        options["recompute_scale_factor"] = draw.choice([None, True, False])
    if mode in LINEAR:
        options["align_corners"] = draw.choice([None, True, False])
    if mode in ("bilinear", "bicubic"):
        options["antialias"] = draw.choice([True, False])
    return options, count


@pytest.mark.parametrize("seed", range(64))
def test_images_of_any_sizes_are_resized_as_in_eager(seed):
    draw = random.Random(seed)
    options, count = random_call(draw)
    compiled = tofuse.compile(lambda x: F.interpolate(x * 2, **options).sin(), hand_back=False)
    dtype = draw.choice([torch.float32, torch.float64])
    strided = draw.random() < 0.5
    for _ in range(4):
        shape = [
            draw.randint(1, 4),
            draw.randint(1, 5),
            *(draw.randint(2, 9) for _ in range(count)),
        ]
        x = torch.randn(shape, dtype=dtype)
        x = x.movedim(1, -1).contiguous().movedim(-1, 1) if strided else x
        x.requires_grad_()
        ours, theirs = compiled(x), F.interpolate(x * 2, **options).sin()
        torch.testing.assert_close(ours, theirs)
        assert _strides(ours) == _strides(theirs)
        gradient = torch.randn_like(theirs)
        found, expected = (torch.autograd.grad(r, x, gradient)[0] for r in (ours, theirs))
        torch.testing.assert_close(found, expected)


def _strides(x):
    """Return the strides of dimensions in which there are steps."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]
