"""Constant indices that repeat elements, forward and backward; assertions beside kernels."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
SIZES = [
    *[((2, 3, 5, 7), {"scale_factor": k}) for k in (2, 3, 0.5, 2.5)],
    *[((2, 3, 5, 7), {"size": s}) for s in ((10, 7), (15, 28), (11, 9), (5, 7))],
    *[((2, 3, 6), {"scale_factor": 2}), ((1, 2, 3, 4, 5), {"scale_factor": 2})],
]


@pytest.mark.broad(6)
@pytest.mark.parametrize("options", [{}, {"capture": "trace"}, {"dynamic": True}], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize(("shape", "how"), SIZES, ids=str)
def test_interpolation_is_as_eager(shape, how, mode, options):
    x = torch.randn(shape, requires_grad=True)
    assert_as_eager(lambda x: F.interpolate(x * 2, mode=mode, **how) + 1, x, options=options)


def test_channels_last_is_preserved():
    x = torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last).requires_grad_()
    assert_as_eager(lambda x: F.interpolate(x * 2, scale_factor=2) + 1, x)


def test_integer_factors_are_one_kernel_per_phase():
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    report = tofuse.explain(lambda x: F.interpolate(x.sin(), scale_factor=2) + 1)(x)
    assert [(len(g.kernels), len(g.library_calls)) for g in report.graphs] == [(1, 0), (1, 0)]


def test_calls_with_equal_types_and_other_indices():
    """The lowering cache must not confuse them."""

    def f(x):
        return F.interpolate(x, size=8) + F.interpolate(x, scale_factor=2.1)

    assert_as_eager(f, torch.randn(2, 3, 4))


@pytest.mark.broad(4)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "area"])
@pytest.mark.parametrize("how", [{"scale_factor": 2.1}, {"size": (9, 6)}], ids=str)
def test_interpolation_with_gradients_is_left_to_pytorch(how, mode, last):
    x = torch.randn(2, 3, 5, 7)
    if last:
        x = x.to(memory_format=torch.channels_last)

    def f(x):
        return F.interpolate(x.sin(), mode=mode, **how) * 2

    assert_as_eager(f, x.requires_grad_())
    if mode == "bilinear":
        report = tofuse.explain(f)(x)
        called = [c.name for g in report.graphs for c in g.library_calls]
        assert called == [f"aten.upsample_bilinear2d{way}.default" for way in ("", "_backward")]
        with torch.no_grad():
            assert not tofuse.explain(f)(x).library_calls


def test_interpolation_of_symbolic_sizes():
    compiled = tofuse.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    for size in (5, 8, 11):
        x = torch.randn(1, 2, size, size + 1, requires_grad=True)
        expected = F.interpolate(x, scale_factor=2, mode="bilinear")
        torch.testing.assert_close(compiled(x), expected)
        grad = torch.randn_like(expected)
        ours, eager = (torch.autograd.grad(y, x, grad)[0] for y in (compiled(x), expected))
        torch.testing.assert_close(ours, eager)


def test_interpolation_of_derived_symbolic_sizes():
    def down_and_up(x):
        half = F.max_pool2d(x * 2, 2)
        return F.interpolate(half, scale_factor=2, mode="bilinear") + x[..., : x.shape[-1] // 2 * 2]

    compiled = tofuse.compile(down_and_up, dynamic=True, strict=True)
    for size in (6, 8, 12):
        x = torch.randn(1, 2, size, size + 2, requires_grad=True)
        actual, expected = compiled(x), down_and_up(x)
        torch.testing.assert_close(actual, expected)
        grad = torch.randn_like(expected)
        ours, eager = (torch.autograd.grad(y, x, grad)[0] for y in (actual, expected))
        torch.testing.assert_close(ours, eager)


def one_hot_loss(x, t):
    return -(F.one_hot(t, 10) * x.log_softmax(-1)).sum(-1).mean()


@pytest.mark.parametrize("options", [{}, {"capture": "trace"}, {"dynamic": True}], ids=str)
def test_one_hot_checks_its_classes(options):
    x, t = torch.randn(33, 10, requires_grad=True), torch.randint(0, 10, (33,))
    compiled = assert_as_eager(one_hot_loss, x, t, options=options)
    for bad in (10, -1):
        t[5] = bad
        with pytest.raises(RuntimeError, match="Class values must be"):
            compiled(x, t)


def test_an_assertion_stays_a_library_call():
    (graph,) = tofuse.explain(lambda t: F.one_hot(t, 10).float() * 2)(torch.arange(10)).graphs
    assert {c.name for c in graph.library_calls} == {"aten._assert_async.msg"}
