"""Dependent sums of many elements, in Triton's interpreter; see test_gpu_driver.py."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.fake_gpu import FakeGpu, compile_for

__all__ = ["compile_for"]  # a fixture

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def batch_norm(x, weight, bias):
    mean, variance = torch.zeros_like(weight), torch.ones_like(bias)
    y = F.batch_norm(x, mean, variance, weight, bias, training=True)
    return y, mean, variance


def instance_norm(x, weight, bias):
    return (F.instance_norm(x, weight=weight, bias=bias),)


def group_norm(x, weight, bias):
    return (F.group_norm(x, 2, weight, bias),)


def two_variances(x, weight, bias):
    kept = (0, 2, 3)
    variances = x.var(kept), (x * weight[:, None, None]).std(kept, correction=0)
    return (*variances, x.amax(kept) + bias)


def variance_of_all(x, weight, bias):
    return (x.var() * weight + bias,)


def third_moment(x, weight, bias):
    deviation = x - x.mean((0, 2, 3), keepdim=True)
    scale = deviation.square().mean((0, 2, 3), keepdim=True).sqrt()
    return ((deviation / scale).pow(3).mean((0, 2, 3)) * weight + bias,)


PROGRAMS = [batch_norm, instance_norm, group_norm, two_variances, variance_of_all, third_moment]
SHAPES = [(3, 2, 160, 138), (2, 2, 131, 257)]  # the second has no divisors
KINDS = [(torch.float32, torch.contiguous_format), (torch.bfloat16, torch.channels_last)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "layout"), KINDS, ids=["f32", "bf16_channels_last"])
def test_variances(compile_for, program, shape, dtype, layout):
    generator = torch.Generator().manual_seed(5)
    x = (torch.randn(shape, generator=generator) + 3).to(dtype).to(memory_format=layout)
    vectors = (torch.randn(shape[1], generator=generator).to(dtype) for _ in range(2))
    check(compile_for(FakeGpu(), program)[0], program, [x, *vectors])


def layer_norm(x, weight, bias):
    return (F.layer_norm(x, x.shape[1:]) * weight[:, None, None] + bias[:, None, None],)


VARYING = [(f, s) for f in (batch_norm, layer_norm) for s in ((64, 3, 40, 41), (3, 2, 1, 5))]
VARYING += [(variance_of_all, (64, 3, 40, 41)), (layer_norm, (0, 2, 300, 500))]


@pytest.mark.parametrize(("program", "shape"), VARYING)
def test_sizes_that_vary(compile_for, program, shape):
    x, *vectors = torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])
    check(compile_for(FakeGpu(), program, dynamic=True)[0], program, [x, *vectors])


def softmax(x, weight, bias):
    return (F.softmax(x, -1) * weight, torch.logsumexp(x, -1) + bias.sum())


def log_softmax_of_columns(x, weight, bias):
    return (F.log_softmax(x, 0) * weight + bias,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("program", "shape"),
    [(softmax, (3, 70000)), (softmax, (1, 70001)), (log_softmax_of_columns, (70000, 3))],
)
def test_exponentials(compile_for, program, shape, dtype):
    x = torch.randn(shape[::-1], generator=torch.Generator().manual_seed(3)).t() * 4
    x[0, : shape[1] // 2] = -1e4
    vectors = (torch.randn(shape[1]) for _ in range(2))
    made = [t.to(dtype) for t in (x, *vectors)]
    check(compile_for(FakeGpu(), program)[0], program, made)


def check(compiled, program, made) -> None:
    """Compare results and gradients with float64; eager's error says how near they must be."""
    found, dtype = [], made[0].dtype
    for run, wide in ((program, torch.float64), (program, dtype), (compiled, dtype)):
        inputs = [t.to(wide, copy=True).requires_grad_() for t in made]
        results = run(*inputs)
        sum((r.cos() * r).sum() for r in results if r.requires_grad).backward()
        found.append([t.detach().double() for t in (*results, *(t.grad for t in inputs))])
    for exact, eager, ours in zip(*found, strict=True):
        if exact.numel():
            rounding = torch.finfo(dtype).eps * max(1.0, float(exact.abs().max()))
            bound = 3 * float((eager - exact).abs().max()) + 512 * rounding  # of 66,240 terms
            assert (ours - exact).abs().max() <= bound
